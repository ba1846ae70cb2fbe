"""JavaScript: what Node's `assert` says of one call's result."""

import re
from functools import partial
from typing import Any

from jail.inside.values import text_of
from jail.judge.apart.parts import MARK, Apart, Assertion, Reader, text_in, whole_number

_MODULE = re.compile(r"(?:node:)?assert(/strict)?")
_EQUAL = {
    "strictEqual": "js",
    "deepStrictEqual": "js",
    "equal": "js loose",
    "deepEqual": "js loose",
}
_DECLARES = ("const", "let", "var")
_CONSTANTS: dict[str, Any] = {
    "true": True, "false": False, "null": None, "undefined": {"$undefined": ""},
    "NaN": {"$number": "NaN"}, "Infinity": {"$number": "Infinity"},
}  # fmt: skip
_BEHIND = """
;{{
const __plain = (v) => {{
  if (v === null || typeof v === "boolean" || typeof v === "string") return v;
  if (typeof v === "number") return Number.isFinite(v) ? v : {{ $number: String(v) }};
  if (v === undefined) return {{ $undefined: "" }};
  if (typeof v === "bigint") return {{ $big: String(v) }};
  if (Array.isArray(v)) return Array.from(v, __plain);
  const kind = Object.getPrototypeOf(v);
  const like = typeof v === "object" && Object.prototype.toString.call(v) === "[object Object]";
  if (!like) return {{ $object: "" }};
  const own = Object.fromEntries(Object.entries(v).map(([key, each]) => [key, __plain(each)]));
  return kind === Object.prototype ? own : {{ $own: own }};
}};
const __values = [];
{calls}
globalThis.process.stdout.write({mark} + JSON.stringify(__values) + {mark});
}}
"""


def taken_apart(check: str) -> Apart:
    """Take a check apart: the calls that it makes, and what each of them must return.

    Raises ValueError if it has a statement besides assertions and the values that they name.
    """
    reading = _Reading(check)
    reading.statements()
    if not reading.held:
        raise ValueError("nothing is asserted")
    text = _BEHIND.format(calls="\n".join(reading.lines), mark=text_of([MARK]).decode()[1:-1])
    return Apart(text, tuple(reading.held))


class _Reading:
    def __init__(self, check: str) -> None:
        self.words = Reader(check)
        self.lines: list[str] = []
        self.held: list[Assertion] = []
        self._names: set[str] = set()  # of declared values
        self._assert = {"assert": False}  # by which name, and whether `equal` is strict there
        self._bodies: list[str] = []  # of functions whose statements have been read

    def statements(self) -> None:
        while not self.words.done and not self.words.sees("}"):
            self._statement()
        if self.words.sees("}"):
            raise ValueError("a block that nothing has opened")

    def _statement(self) -> None:
        words = self.words
        if words.take(";") or (words.peek().kind == "text" and words.peek(1).text == ";"):
            if words.peek().kind == "text":
                words.next()
            return
        if words.sees("function"):
            self._function()
        elif words.peek().text in _DECLARES:
            self._declaration()
        elif words.peek().text in self._bodies and words.peek(1).text == "(":
            words.next()
            words.want("(", ")")
        else:
            self._assertion()
        words.take(";")

    def _function(self) -> None:
        """Read a function without arguments that is called once behind it: a wrapper."""
        words = self.words
        words.want("function")
        name = words.word()
        words.want("(", ")", "{")
        self._body(name)

    def _body(self, name: str) -> None:
        while not self.words.take("}"):
            self._statement()
        self.words.take(";")
        if not self.words.sees(name, "(", ")"):
            raise ValueError("a function that is not called at once")
        self._bodies.append(name)

    def _declaration(self) -> None:
        words = self.words
        begin = words.place
        words.next()
        name = words.word()
        words.want("=")
        if words.take("(", ")", "=", ">", "{"):
            self._body(name)
            return
        if words.take("require", "("):
            module = _MODULE.fullmatch(text_in(words.next().text))
            words.want(")")
            strict = bool(module and module[1]) or words.take(".", "strict")
            if not module:
                raise ValueError("another module")
            self._assert[name] = strict
            return
        if (
            words.peek().kind == "word"
            and words.peek(1).text in (";", "")
            and (words.peek().text not in _CONSTANTS)
        ):
            words.next()  # `candidate`: a function by another name
        else:
            self.literal(names=True)
            self._names.add(name)
        self.lines.append(words.since(begin) + ";")

    def _assertion(self) -> None:
        words = self.words
        name = words.word()
        if name == "console":
            words.want(".", "assert")
            method = "ok"
        elif name in self._assert:
            method = words.word() if words.take(".") else "ok"
        else:
            raise ValueError("no assertion")
        words.want("(")
        if method == "ok":
            self._holds()
        else:
            if method not in _EQUAL:
                raise ValueError("another assertion")
            self._are_equal("js" if self._assert.get(name) else _EQUAL[method])
        if words.take(","):
            words.next() if words.peek().kind == "text" else words.want(")")
            words.take(",")
        words.want(")")

    def _are_equal(self, how: str) -> None:
        words = self.words
        begin = words.place
        try:
            value = self.literal()
            words.want(",")
            call = self.call()
        except ValueError:
            words.back_to(begin)
            call = self.call()
            words.want(",")
            value = self.literal()
        self._add(call, how, value)

    def _holds(self) -> None:
        """Read a condition: `call`, `!call`, or a call beside `===` or `==`."""
        words = self.words
        negated = words.take("!")
        call = self.call()
        operator = words.peek().text
        if not negated and operator in ("===", "=="):
            words.next()
            self._add(call, "js" if operator == "===" else "js loose", self.literal())
        else:
            self.lines.append(f"__values.push(__plain({call}));")
            self.held.append(Assertion("js false" if negated else "js true"))

    def _add(self, call: str, how: str, value: Any) -> None:
        self.lines.append(f"__values.push(__plain({call}));")
        self.held.append(Assertion(how, text_of([value])[1:-1]))

    def call(self) -> str:
        """The text of a call: a name, and arguments that are plain."""
        words = self.words
        begin = words.place
        if words.word() in _CONSTANTS:
            raise ValueError("no function")
        return words.call_since(begin, partial(self.literal, names=True))

    def literal(self, *, names: bool = False) -> Any:
        """The value of a literal; a name of a declared one counts as plain where `names` may
        stand."""
        words = self.words
        found = words.next()
        if found.kind == "text":
            return text_in(found.text)
        if found.kind == "number":
            return _number(found.text)
        if found.text == "(":
            value = self.literal(names=names)
            words.want(")")
            return value
        if found.text == "-":
            return _negative(self.literal())
        if found.text == "[":
            return self._items("]", names)
        if found.text == "{":
            return self._pairs(names)
        if found.text in _CONSTANTS:
            return _CONSTANTS[found.text]
        if names and found.text in self._names:
            return None
        raise ValueError(f"{found.text!r} is no literal")

    def _items(self, close: str, names: bool) -> list[Any]:
        items = []
        while not self.words.take(close):
            items.append(self.literal(names=names))
            if not self.words.sees(close):
                self.words.want(",")
        return items

    def _pairs(self, names: bool) -> dict[str, Any]:
        pairs = {}
        while not self.words.take("}"):
            key = self.words.next()
            if key.kind not in ("word", "text", "number"):
                raise ValueError("another kind of key")
            self.words.want(":")
            name = text_in(key.text) if key.kind == "text" else key.text
            pairs[name] = self.literal(names=names)
            if not self.words.sees("}"):
                self.words.want(",")
        return pairs


def _number(text: str) -> Any:
    if text.endswith("n"):
        return {"$big": str(whole_number(text[:-1]))}
    if re.fullmatch(r"0[xXbBoO]\w+|[\d_]+", text):
        return float(whole_number(text)) if not re.fullmatch(r"0\d+", text) else _refuse()
    return float(text.replace("_", ""))


def _refuse() -> None:
    raise ValueError("an octal number of old")


def _negative(value: Any) -> Any:
    match value:
        case {"$number": "Infinity"}:
            return {"$number": "-Infinity"}
        case {"$big": digits}:
            return {"$big": f"-{digits}"}
        case bool():
            raise ValueError("no number")
        case int() | float():
            return -value
    raise ValueError("no number")


def same(found: Any, wanted: Any, *, loose: bool) -> bool:
    """Whether `deepStrictEqual` says so, or loosely as `deepEqual`."""
    if isinstance(wanted, list):
        return (
            isinstance(found, list)
            and len(found) == len(wanted)
            and all(same(*each, loose=loose) for each in zip(found, wanted, strict=True))
        )
    if isinstance(wanted, dict):
        if _is_nothing(wanted):
            return found == wanted or (loose and found is None)
        if loose and isinstance(found, dict) and [*found] == ["$own"]:
            found = found["$own"]  # an object of a class: `deepEqual` looks at its fields alone
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(same(found[key], each, loose=loose) for key, each in wanted.items())
        )
    if isinstance(found, list | dict):
        return loose and wanted is None and _is_nothing(found)
    if type(found) is int:
        found = float(found)  # as every number of JavaScript is
    if type(found) is type(wanted):
        return bool(found == wanted)
    if not loose or found is None or wanted is None:
        return False
    try:
        return _as_number(found) == _as_number(wanted)
    except ValueError:
        return False


def is_true(found: Any) -> bool:
    """Whether JavaScript takes it so: of what is empty, only a text is not."""
    if isinstance(found, dict) and found in (
        {"$undefined": ""}, {"$number": "NaN"}, {"$big": "0"}
    ):  # fmt: skip
        return False
    return isinstance(found, list | dict) or bool(found)


def _is_nothing(value: Any) -> bool:
    return bool(value == {"$undefined": ""})


def _as_number(value: Any) -> float:
    return float(value.strip() or 0) if isinstance(value, str) else float(value)
