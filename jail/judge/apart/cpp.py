"""C++: `assert` of one call's result beside a literal, in a `main` that has nothing else."""

import re
import struct
from functools import partial
from typing import Any, NamedTuple

from jail.inside.values import text_of
from jail.judge.apart.parts import MARK, Apart, Assertion, Reader, text_in, whole_number

_LISTS = {"vector", "list", "deque", "array", "initializer_list", "forward_list"}
_SETS = {"set", "unordered_set", "multiset", "unordered_multiset"}
_MAPS = {"map", "unordered_map", "multimap", "unordered_multimap"}
_TUPLES = {"pair", "tuple"}
_MAKES = {"make_pair", "make_tuple", "make_optional"}
_FLOATS = {"double": float, "float": lambda value: struct.unpack("f", struct.pack("f", value))[0]}
_WORDS_OF_NUMBERS = {
    "int", "long", "short", "char", "unsigned", "signed", "bool", "float", "double", "size_t",
    "int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
}  # fmt: skip
_UNSIGNED = {"unsigned", "size_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t"}
_TYPES = _LISTS | _SETS | _MAPS | _TUPLES | _WORDS_OF_NUMBERS | {"string", "optional", "any"}
_CONSTANTS = {"true": 1, "false": 0, "nullopt": None, "nullptr": None}
_LINE = re.compile(r"[ \t]*#[ \t]*(?:include[ \t]*[<\"][^\n]*|undef[ \t]+NDEBUG[^\n]*)$", re.M)
_NO_VALUE = object()


class _Type(NamedTuple):
    name: str
    of: tuple["_Type", ...] = ()


def taken_apart(check: str) -> Apart:
    """Take a check apart: the calls that it makes, and what each of them must return.

    Raises ValueError if it has a statement besides assertions and the values that they name.
    """
    lines = _LINE.findall(check)
    reading = _Reading(_LINE.sub("", check))
    reading.whole()
    if not reading.held:
        raise ValueError("nothing is asserted")
    calls = "\n".join(reading.lines)
    main = f"signed main() {{\n{calls}\npenstock_said::penstock_end();\n}}\n"
    return Apart("\n".join([_BEHIND, *lines, *reading.before, main]), tuple(reading.held))


class _Reading:
    def __init__(self, check: str) -> None:
        self.words = Reader(check)
        self.before: list[str] = []
        self.lines: list[str] = []
        self.held: list[Assertion] = []
        self._names: set[str] = set()  # of declared values

    def whole(self) -> None:
        words = self.words
        while words.take("using", "namespace", "std", ";"):
            self.before.append("using namespace std;")
        words.want("int", "main")
        words.skip_to_close()
        words.want("{")
        while not words.take("}"):
            self._statement()
        if not words.done:
            raise ValueError("more than main")

    def _statement(self) -> None:
        words = self.words
        if words.take(";") or words.take("return", "0", ";"):
            return
        if words.take("assert", "("):
            self._assertion()
            words.want(")", ";")
            return
        begin = words.place
        if words.take("auto"):
            words.take("&")
            name = words.word()
            words.want("=")
            words.word()  # `candidate`: a function by another name
        else:
            if words.peek().text not in self._names:
                words.take("const")
                self._type()
                words.take("&")
            name = words.word()
            if words.take("=") or words.sees("{"):
                self.literal(names=True)
            self._names.add(name)
        words.want(";")
        self.lines.append(words.since(begin))

    def _assertion(self) -> None:
        words = self.words
        if words.take("!"):
            return self._add(self.call(), Assertion("false"))
        begin = words.place
        try:
            value = self.literal()
            words.want("==")
            call = self.call()
        except ValueError:
            words.back_to(begin)
            call = self.call()
            if not words.take("=="):
                return self._add(call, Assertion("true"))
            value = self.literal()
        return self._add(call, Assertion("c++", text_of([value])[1:-1]))

    def _add(self, call: str, held: Assertion) -> None:
        self.lines.append(f"penstock_said::penstock_next({call});")
        self.held.append(held)

    def call(self) -> str:
        """The text of a call: a name, and arguments that are plain."""
        words = self.words
        if words.take("("):
            call = self.call()
            words.want(")")
            return call
        begin = words.place
        if words.word() in _TYPES | _MAKES:
            raise ValueError("no function")
        return words.call_since(begin, partial(self.literal, names=True))

    def literal(self, *, names: bool = False) -> Any:
        """The value of a literal; a name of a declared one counts as plain where `names` may
        stand."""
        words = self.words
        found = words.peek()
        if found.kind == "text":
            return self._text()
        if found.kind == "number":
            words.next()
            return _number(found.text)
        if words.take("-"):
            return -_a_number(self.literal(names=names))
        if words.take("("):
            return self._in_parentheses(names)
        if words.sees("{"):
            return self._items("{", "}", names)
        if names and found.text in self._names:
            words.next()
            return _NO_VALUE
        begin = words.place
        words.take("std", "::")
        if (name := words.peek().text) in _CONSTANTS:
            words.next()
            return _CONSTANTS[name]
        if name in _MAKES:
            words.next()
            if words.sees("<"):
                raise ValueError("types are named")
            items = self._items("(", ")", names)
            return items[0] if name == "make_optional" else items
        words.back_to(begin)
        return self._made(self._type(), names)

    def _in_parentheses(self, names: bool) -> Any:
        """A value, or a type and behind it a value that is cast."""
        words = self.words
        begin = words.place
        try:
            kind = self._type()
            words.want(")")
        except ValueError:
            words.back_to(begin)
            value = self.literal(names=names)
            words.want(")")
            return value
        return _cast(self.literal(names=names), kind)

    def _made(self, kind: _Type, names: bool) -> Any:
        """Read a made value: `vector<int>{1, 2}`, `vector<int>({1, 2})`, `string("a")`, `pair<int,
        int>(1, 2)`."""
        words = self.words
        opens = words.peek().text
        if opens not in ("(", "{"):
            raise ValueError("a type, and no value")
        items = self._items(opens, ")" if opens == "(" else "}", names)
        several = kind.name in _TUPLES or (opens == "{" and kind.name in _LISTS | _SETS | _MAPS)
        if several:
            nested = len(items) == 1 and isinstance(items[0], list) and kind.name in _TUPLES
            return _cast(items[0] if nested else items, kind)
        if not items:
            return _cast(
                _EMPTY.get(kind.name, [] if kind.name in _LISTS | _SETS | _MAPS else 0), kind
            )
        if len(items) > 1:
            raise ValueError("a constructor of several values")
        if opens == "(" and kind.name in _LISTS | _SETS | _MAPS and not isinstance(items[0], list):
            raise ValueError("a constructor of a size")
        return _cast(items[0], kind)

    def _items(self, opens: str, closes: str, names: bool) -> list[Any]:
        items = []
        self.words.want(opens)
        while not self.words.take(closes):
            items.append(self.literal(names=names))
            if not self.words.sees(closes):
                self.words.want(",")
        return items

    def _type(self) -> _Type:
        words = self.words
        words.take("std", "::")
        name = words.word()
        if name not in _TYPES:
            raise ValueError(f"{name} is another type")
        while name in _WORDS_OF_NUMBERS and words.peek().text in _WORDS_OF_NUMBERS:
            name = "double" if words.next().text == "double" else name
        of = []
        if words.take("<"):
            while not words.take(">"):
                of.append(
                    _Type(words.next().text) if words.peek().kind == "number" else self._type()
                )
                if not words.sees(">"):
                    words.want(",")
        return _Type(name, tuple(of))

    def _text(self) -> Any:
        """A text as its bytes, each a character; or a character, which is a number."""
        words = self.words
        if words.peek().text.startswith("'"):
            character = text_in(words.next().text).encode()
            if len(character) != 1:
                raise ValueError("no character")
            return character[0]
        whole = ""
        while words.peek().kind == "text":
            whole += text_in(words.next().text)
        if words.peek().text == "s":
            words.next()
        return whole.encode().decode("latin-1")


_EMPTY: dict[str, Any] = {"string": "", "optional": None}


def _number(text: str) -> float:
    digits = text.rstrip("uUlLzZ")
    if re.fullmatch(r"0[xXbB][\da-fA-F']+|[\d']+", digits):
        return whole_number(digits)
    value = float(digits.rstrip("fF").replace("'", ""))
    return float(_FLOATS["float"](value)) if digits[-1] in "fF" else value


def _a_number(value: Any) -> Any:
    if isinstance(value, int | float):
        return value
    raise ValueError("no number")


def _cast(value: Any, kind: _Type) -> Any:
    """The value as the type has it. Raises ValueError for what it does not hold."""
    if value is _NO_VALUE:
        return value
    if kind.name in _FLOATS:
        return float(_FLOATS[kind.name](_a_number(value)))
    if kind.name == "bool":
        return int(bool(_a_number(value)))
    if kind.name in _WORDS_OF_NUMBERS:
        if kind.name in _UNSIGNED and _a_number(value) < 0:
            raise ValueError("a number of another size")
        return int(_a_number(value))
    if kind.name == "string":
        if not isinstance(value, str):
            raise ValueError("no text")
        return value
    if kind.name in ("optional", "any"):
        return value if value is None or not kind.of else _cast(value, kind.of[0])
    if not isinstance(value, list):
        raise ValueError("no list")  # noqa: TRY004 - caught beside the others
    if kind.name in _TUPLES:
        if len(value) != len(kind.of):
            raise ValueError("another length")
        return [_cast(*each) for each in zip(value, kind.of, strict=True)]
    if kind.name in _MAPS:
        return {"$bag": [_cast(each, _Type("pair", kind.of[:2])) for each in value]}
    items = [_cast(each, kind.of[0]) if kind.of else each for each in value]
    return {"$bag": items} if kind.name in _SETS else items


def same(found: Any, wanted: Any) -> bool:
    """Whether `==` says so of values of one type: numbers by value, sets and maps in any order.

    An unsigned number is a signed one as well, which it is converted from beside a whole number.
    """
    match found:
        case {"$unsigned": [value, signed]}:
            return value == wanted or (type(wanted) is int and signed == wanted)
    match wanted:
        case {"$bag": items}:
            match found:
                case {"$bag": others} if len(others) == len(items):
                    ordered = (sorted(each, key=repr) for each in (others, items))
                    return all(same(*each) for each in zip(*ordered, strict=True))
            return False
        case list():
            return (
                isinstance(found, list)
                and len(found) == len(wanted)
                and all(same(*each) for each in zip(found, wanted, strict=True))
            )
    return type(found) not in (list, dict) and bool(found == wanted)


# Nothing of the program is used, nor any header that it has not included.
_SAYS = r"""
namespace penstock_said {
static char *text = 0;
static unsigned long used = 0, room = 0;
static int count = 0;
static void put(const char *from, unsigned long size) {
    if (used + size + 1 > room) {
        room = 2 * (used + size) + 64;
        text = (char *)__builtin_realloc(text, room);
    }
    __builtin_memcpy(text + used, from, size);
    used += size;
    text[used] = 0;
}
static void put(const char *words) { put(words, __builtin_strlen(words)); }

template <class T> struct bare { typedef T type; };
template <class T> struct bare<const T> : bare<T> {};
template <class T> struct bare<T &> : bare<T> {};
template <class T> struct bare<T &&> : bare<T> {};
template <class T> const T &some();
template <class...> struct made { typedef void type; };
struct no { enum { is = 0 }; };
struct yes { enum { is = 1 }; };

template <class T> struct number { enum { kind = 0 }; };
#define PENSTOCK_NUMBER(T, K) template <> struct number<T> { enum { kind = K }; };
PENSTOCK_NUMBER(bool, 1) PENSTOCK_NUMBER(char, 1) PENSTOCK_NUMBER(signed char, 1)
PENSTOCK_NUMBER(unsigned char, 1) PENSTOCK_NUMBER(wchar_t, 1) PENSTOCK_NUMBER(char16_t, 1)
PENSTOCK_NUMBER(char32_t, 1) PENSTOCK_NUMBER(short, 1) PENSTOCK_NUMBER(unsigned short, 1)
PENSTOCK_NUMBER(int, 1) PENSTOCK_NUMBER(unsigned, 2) PENSTOCK_NUMBER(long, 1)
PENSTOCK_NUMBER(unsigned long, 2) PENSTOCK_NUMBER(long long, 1)
PENSTOCK_NUMBER(unsigned long long, 2) PENSTOCK_NUMBER(float, 3) PENSTOCK_NUMBER(double, 3)
PENSTOCK_NUMBER(long double, 3)
#undef PENSTOCK_NUMBER

#define PENSTOCK_HAS(NAME, ...) \
    template <class T, class = void> struct NAME : no {}; \
    template <class T> struct NAME<T, typename made<__VA_ARGS__>::type> : yes {};
PENSTOCK_HAS(is_text, decltype(some<T>().c_str()))
PENSTOCK_HAS(is_view, decltype(some<T>().data()), decltype(some<T>().find_first_of('a')))
PENSTOCK_HAS(has_items, decltype(some<T>().begin()), decltype(some<T>().end()))
PENSTOCK_HAS(has_keys, typename T::key_type)
PENSTOCK_HAS(is_pair, decltype(some<T>().first), decltype(some<T>().second))
PENSTOCK_HAS(may_hold, decltype(some<T>().has_value()), decltype(*some<T>()))
#undef PENSTOCK_HAS

static void put_text(const char *from, unsigned long size) {
    put("\"");
    for (unsigned long at = 0; at < size; at++) {
        unsigned char one = (unsigned char)from[at];
        char shown[8];
        if (one < 32 || one > 126 || one == '"' || one == '\\')
            __builtin_snprintf(shown, 8, "\\u%04x", one);
        else
            __builtin_snprintf(shown, 8, "%c", one);
        put(shown);
    }
    put("\"");
}

static void say(const char *words) { put_text(words, __builtin_strlen(words)); }
static void say(char *words) { put_text(words, __builtin_strlen(words)); }
template <class T> void say(const T &value);
#ifdef _GLIBCXX_TUPLE
template <unsigned long at, class... T> void say_from(const std::tuple<T...> &value) {
    if constexpr (at < sizeof...(T)) {
        if (at) put(",");
        say(std::get<at>(value));
        say_from<at + 1>(value);
    }
}
template <class... T> void say(const std::tuple<T...> &value) {
    put("[");
    say_from<0>(value);
    put("]");
}
#endif
template <class T> void say(const T &value) {
    constexpr int kind = number<typename bare<T>::type>::kind;
    char shown[64];
    if constexpr (kind == 3) {
        double it = (double)value;
        if (it != it) put("NaN");
        else if (it > 1.7976931348623157e308) put("Infinity");
        else if (it < -1.7976931348623157e308) put("-Infinity");
        else { __builtin_snprintf(shown, 64, "%.17g", it); put(shown); }
    } else if constexpr (kind == 2) {
        __builtin_snprintf(shown, 64, "%llu", (unsigned long long)value);
        put(shown);
    } else if constexpr (kind == 1) {
        __builtin_snprintf(shown, 64, "%lld", (long long)value);
        put(shown);
    } else if constexpr (is_text<T>::is || is_view<T>::is) {
        put_text(value.data(), value.size());
    } else if constexpr (has_items<T>::is) {
        put(has_keys<T>::is ? "{\"$bag\":[" : "[");
        bool later = false;
        for (auto &&each : value) {
            if (later) put(",");
            later = true;
            say(each);
        }
        put(has_keys<T>::is ? "]}" : "]");
    } else if constexpr (is_pair<T>::is) {
        put("[");
        say(value.first);
        put(",");
        say(value.second);
        put("]");
    } else if constexpr (may_hold<T>::is) {
        if (value.has_value()) say(*value);
        else put("null");
    } else {
        put("{\"$object\":\"\"}");
    }
}
template <class T> void penstock_next(const T &value) {
    put(count++ ? "," : "[");
    if constexpr (number<typename bare<T>::type>::kind == 2) {
        if (value >> (sizeof(T) * 8 - 1)) {  // a signed number beside it may be equal as well
            char shown[80];
            __builtin_snprintf(shown, 80, "{\"$unsigned\":[%llu,%lld]}", (unsigned long long)value,
                               -1 - (long long)~value);
            put(shown);
            return;
        }
    }
    say(value);
}
extern "C" int penstock_flush(void *) __asm__("fflush");
static void penstock_end() {
    put("]");
    __builtin_printf("%s%s%s", MARK, text, MARK);
    penstock_flush(0);  // at the program's end, what std::cout holds would come in between
}
}
""".replace("MARK", '"' + MARK.replace("\x1e", "\\036") + '"')
# A program's macros may have any name: those that this text uses are switched off in it. The check
# has them again, as it would behind the program.
_USED = sorted(set(re.findall(r"\b(?!_|PENSTOCK)[A-Za-z]\w*", _SAYS)))
_BEHIND = "\n".join(
    [
        *(f'#pragma push_macro("{name}")\n#undef {name}' for name in _USED),
        _SAYS,
        *(f'#pragma pop_macro("{name}")' for name in _USED),
        "#undef main",
    ]
)
