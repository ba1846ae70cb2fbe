"""A check is read into these parts; here are the words of languages whose texts look like C's."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

# Around what the calls returned, on stdout. The program may write it too: it is its own word.
MARK = "\x1e--values--\x1e"

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<word>[A-Za-z_$][\w$]*)
    |(?P<number>(?:0[xXbB][\da-fA-F]+|(?:\d[\d_']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\w*)
    |(?P<sign>===|!==|==|!=|::|.)""",
    re.DOTALL | re.VERBOSE,
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "\n": "",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u\{([0-9a-fA-F]+)\}|u([0-9a-fA-F]{4})|([0-7]{1,3})|(.))", re.DOTALL
)


class Assertion(NamedTuple):
    """An assertion: by which rule (`jail.judge.values.How`) it holds, and the value, as JSON."""

    how: str
    value: bytes = b""


class Apart(NamedTuple):
    """The two halves of a check: what is put behind the program, and what must hold of each
    result."""

    behind: str
    held: tuple[Assertion, ...]


class Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class Reader:
    """The words of a text, one after the other. What does not fit raises ValueError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens = [
            Token(str(found.lastgroup), found[0], found.start(), found.end())
            for found in _TOKEN.finditer(text)
            if found.lastgroup != "space"
        ]
        self._at = 0

    @property
    def done(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def place(self) -> int:
        return self._at

    def back_to(self, place: int) -> None:
        self._at = place

    def peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("end", "", 0, 0)

    def next(self) -> Token:
        found = self.peek()
        if found.kind == "end":
            raise ValueError("the text has ended")
        self._at += 1
        return found

    def sees(self, *texts: str) -> bool:
        """Whether these come next."""
        return all(self.peek(ahead).text == text for ahead, text in enumerate(texts))

    def take(self, *texts: str) -> bool:
        """Take these words, if they come next."""
        found = self.sees(*texts)
        self._at += len(texts) * found
        return found

    def want(self, *texts: str) -> None:
        if not self.take(*texts):
            raise ValueError(f"{self.peek().text!r} stands where {' '.join(texts)!r} should")

    def word(self) -> str:
        found = self.next()
        if found.kind != "word":
            raise ValueError(f"{found.text!r} is no name")
        return found.text

    def since(self, place: int) -> str:
        """The text from there to here."""
        return self.text[self._tokens[place].start : self._tokens[self._at - 1].end]

    def call_since(self, place: int, argument: Callable[[], Any]) -> str:
        """The text from there to the end of a call, whose arguments come next."""
        self.want("(")
        while not self.take(")"):
            argument()
            if not self.sees(")"):
                self.want(",")
        return self.since(place)

    def skip_to_close(self) -> None:
        """Past the bracket that closes the one which comes next."""
        open_ones = [_CLOSING[self.next().text]]
        while open_ones:
            found = self.next().text
            if found in _CLOSING:
                open_ones.append(_CLOSING[found])
            elif found in _CLOSING.values() and found != open_ones.pop():
                raise ValueError("brackets cross")


def text_in(quoted: str) -> str:
    """The meaning of a quoted text, by the escapes that C and JavaScript have in common."""

    def meant(found: re.Match[str]) -> str:
        hexadecimal = found[1] or found[2] or found[3]
        if hexadecimal:
            return chr(int(hexadecimal, 16))
        if found[4]:
            return chr(int(found[4], 8))
        if found[5] in "xuU":
            raise ValueError("an unfinished escape")
        return _SIMPLE.get(found[5], found[5])

    return _ESCAPE.sub(meant, quoted[1:-1])


def whole_number(text: str) -> int:
    """A whole number by its prefix, without a suffix."""
    text = text.replace("_", "").replace("'", "")
    if re.fullmatch(r"0[0-7]+", text):
        return int(text, 8)
    return int(text, 0)


Value = Any
