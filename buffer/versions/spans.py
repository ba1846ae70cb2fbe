"""What an item says of the versions that made it: `version_start` and `version_end`, run-length
`versions` as `[[tokens, version], …]`, or slime's `weight_versions`, one for each engine's answer.

A version below 0 marks tokens that no version made, such as a prompt.
"""

from typing import Any

from buffer.errors import ItemRefused

_ENDS = ("version_start", "version_end")
_REPORTS = frozenset((*_ENDS, "versions", "weight_versions"))
_HIGHEST = 2**31  # versions are part of scores, next to the time


def reported(item: dict[str, Any]) -> tuple[str, str]:
    """The lowest and the highest version that an item reports; empty if it reports none."""
    if _REPORTS.isdisjoint(item):
        return "", ""
    found = [_version(item[name], name) for name in _ENDS if item.get(name) is not None]
    found += [version for _, version in spans_of(item)]
    answers = item.get("weight_versions")
    if isinstance(answers, list):  # an engine that was given no name for its weights says "default"
        found += [int(said) for said in map(str, answers) if said.isdecimal() and len(said) < 10]
    made = [version for version in found if version >= 0]
    return (str(min(made)), str(max(made))) if made else ("", "")


def spans_of(item: dict[str, Any]) -> list[tuple[int, int]]:
    """(tokens, version) of each stretch of an item; empty if it names none."""
    said = item.get("versions")
    if said is None:
        return []
    if not isinstance(said, list):
        raise ItemRefused("versions must be a list of [tokens, version] pairs")
    return [_span(pair) for pair in said]


def train_from(item: dict[str, Any], oldest: int) -> int | None:
    """The place of the first token of version `oldest` or later; None if there is none."""
    spans, place = spans_of(item), 0
    for tokens, version in spans:
        if version >= oldest and tokens:
            return place
        place += tokens
    if spans:
        return None
    lowest, _ = reported(item)
    return 0 if not lowest or int(lowest) >= oldest else None


def mask(items: list[dict[str, Any]], oldest: int) -> int:
    """Write into each item its first token to train on; returns the tokens before."""
    masked = 0
    for item in items:
        item["train_from"] = train_from(item, oldest)
        masked += masked_tokens(item, item["train_from"])
    return masked


def masked_tokens(item: dict[str, Any], start: int | None) -> int:
    """Tokens before `start` that some version made; all of them where start is None."""
    masked = place = 0
    for tokens, version in spans_of(item):
        before = tokens if start is None else max(0, min(tokens, start - place))
        masked += before if version >= 0 else 0
        place += tokens
    return masked


def joined(*parts: list[tuple[int, int]]) -> list[list[int]]:
    """Spans one after the other; neighbours of one version become one."""
    out: list[list[int]] = []
    for tokens, version in (span for part in parts for span in part):
        if out and out[-1][1] == version:
            out[-1][0] += tokens
        elif tokens:
            out.append([tokens, version])
    return out


def _span(pair: Any) -> tuple[int, int]:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ItemRefused(f"versions holds {pair!r:.100}, which is no [tokens, version] pair")
    tokens = _whole(pair[0])
    if tokens is None or not 0 <= tokens <= 2**53:
        raise ItemRefused(f"versions has {pair[0]!r:.100} tokens: an integer from 0 up")
    return tokens, _version(pair[1], "versions")


def _version(value: Any, where: str) -> int:
    version = _whole(value)
    if version is None or not -1 <= version <= _HIGHEST:
        raise ItemRefused(f"{where} has the version {value!r:.100}: an integer from 0 to 2^31")
    return version


def _whole(value: Any) -> int | None:
    """3.0 is an integer to JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
