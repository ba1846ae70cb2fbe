"""bash: a check that compares what commands print with words, as `test "$(f 1 2)" = 3`."""

import re

from jail.inside.values import text_of
from jail.judge.apart.parts import MARK, Apart, Assertion

_BARE = r"[\w.,:/+@%=-]+"
_WORD = rf"(?:'[^']*'|\"[^\"$`\\]*\"|{_BARE})"
_CALL = rf"(?P<name>[A-Za-z_]\w*)(?P<arguments>(?:[ \t]+{_WORD})*)[ \t]*"
_FAILS = r"(?:[ \t]*\|\|[ \t]*(?:exit|return)(?:[ \t]+1)?)?"
_NOTHING = re.compile(r"(?:\s|;|#[^\n]*|set -[eu]+(?: *-?o pipefail)?(?=\s|;|$))+")
_TEST = re.compile(
    rf"""(?P<open>test|\[\[?)[ \t]+(?P<quote>"?)\$\({_CALL}\)(?P=quote)[ \t]+"""
    rf"""(?P<operator>==?|-eq)[ \t]+(?P<wanted>{_WORD})(?:[ \t]+\]\]?)?{_FAILS}(?=\s|;|$|\}})"""
)
# As MultiPL-E writes it: a function by another name, and one that holds all tests.
_RENAMED = re.compile(r"candidate\(\)\s*\{\s*(?P<name>[A-Za-z_]\w*)\s+\"\$@\"\s*;?\s*\}")
_OPEN = re.compile(r"(?P<name>run_test|test_\w+|run_tests)\(\)\s*\{")
# No longer number fits into bash's.
_NUMBER = re.compile(r"\s*(?P<sign>[-+]?)(?P<zeros>0*)(?P<digits>[0-9]{1,19})\s*", re.ASCII)
_CLOSES = {"test": "", "[": "]", "[[": "]]"}


def taken_apart(check: str) -> Apart:
    """Take a check apart: the commands that it runs, and what each of them must print.

    Raises ValueError if the check does anything besides `test "$(command)" = word`.
    """
    lines, held, at, body = [], [], 0, ""
    while at < len(check):
        if found := _NOTHING.match(check, at):
            pass
        elif found := _TEST.match(check, at):
            closing = found[0].partition("||")[0].rstrip()
            if not closing.endswith(_CLOSES[found["open"]]):
                raise ValueError("another bracket")
            if found["open"] == "test" and closing.endswith("]"):
                raise ValueError("a bracket that nothing has opened")
            lines.append(f"builtin printf '%s\\0' \"$({found['name']}{found['arguments']})\"")
            held.append(_held(found))
        elif (found := _RENAMED.match(check, at)) or (
            body and (found := re.compile(rf"{body}(?=\s|;|$)").match(check, at))
        ):
            lines += [found[0]] if "{" in found[0] else []
        elif not body and (found := _OPEN.match(check, at)):
            body = found["name"]
        elif body and check[at] == "}":
            at += 1
            continue
        else:
            raise ValueError("another command")
        at = found.end()
    if not held:
        raise ValueError("nothing is tested")
    mark = f"builtin printf %s '{MARK}'"
    return Apart("\n".join(["", mark, *lines, mark, ""]), tuple(held))


def _held(test: re.Match[str]) -> Assertion:
    """The rule for a word; without quotes it is split into words, of which there may be one."""
    word, double = test["wanted"], test["open"] == "[["
    text = word[1:-1] if word[0] in "'\"" else word
    if test["operator"] == "-eq":
        if (number := number_in(text, octal=double)) is None:
            raise ValueError("no number")
        return Assertion("number, or octal" if double else "number", b"%d" % number)
    splits = not test["quote"] and not double
    return Assertion("word" if splits else "==", text_of([text])[1:-1])


def number_in(text: str, *, octal: bool) -> int | None:
    """The number that a text is; `octal` with a zero in front, as in `[[`. None if it is none."""
    if not (found := _NUMBER.fullmatch(text)):
        return None
    base = 8 if octal and found["zeros"] else 10
    try:
        return int(found["sign"] + found["digits"], base)
    except ValueError:  # an 8 or a 9
        return None


def as_json(answer: bytes) -> bytes | None:
    """The JSON of texts that each end in a zero."""
    *texts, rest = answer.split(b"\0")
    return None if rest else text_of([text.decode(errors="replace") for text in texts])
