"""Lua scripts: one file each, with a header that names its keys, arguments and reply.

    -- release.lua: give permits back and hand the room to the waiters.
    -- KEYS   gate leases
    -- ARGV   process how_many_held, then for each held: id fence, then for each lost: id
    -- REPLY  {freed, now_us}

The header is binding. The loader turns each name into a local in capitals: `GATE` and
`LEASES` (from KEYS), `PROCESS` and `HOW_MANY_HELD` (from ARGV; what stands in parentheses
is a remark). Rows that follow are read with an iterator that has their name:
`for id, fence in each_held() do`, or `each()` for a plain `for each: id`. All but the last
such group need their `how_many_…`. `REST` is the index of the first argument after the
named ones.

`-- include: name.lua` on a line of its own is replaced by that file of the same
folder, once. `-- include: limiter:line.lua` by one of another package. A script may have
forms, so that a plain one has no line of what its caller does not use:
`-- include: adapt.lua if full` counts for `load_script(…, "full")` alone, and
`-- include: plain_line.lua or weighed_line.lua if full` has another file for the others. With
`-- include: clock.lua or gated.lua` the form has the file's name. The keys and arguments in
the header of a file that a form chose come before the script's own. A line of code that ends
with `-- if full` is of that form alone.

A server makes each function again at each call. So what is rare may be included in the body of
the function that needs it.

Scripts are called by their digest and sent whole only to a server that has not seen them.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from redis.exceptions import NoScriptError

Command = tuple[Any, ...]

_INCLUDE = re.compile(r"^-- include: (\S+)\.lua(?: or (\S+)\.lua)?(?: if (\w+))?$", re.MULTILINE)
_HEADER = re.compile(r"^-- (KEYS|ARGV)\b *(.*(?:\n--  +.*)*)$", re.MULTILINE)
_REMARK = re.compile(r"\([^()]*\)")
_ROWS = re.compile(r"for each ?([a-z_]*): ([a-z_ ]+),?")


@dataclass(frozen=True)
class Script:
    """A script: its text with includes expanded, its digest, the names of its keys."""

    name: str
    source: str
    sha: str
    keys: tuple[str, ...]

    def command(
        self, keys: Sequence[str], args: Sequence[Any], *, whole: bool = False
    ) -> tuple[Any, ...]:
        """The Redis command that runs it, by digest or with its text."""
        if len(keys) != len(self.keys):
            raise TypeError(f"{self.name} takes the keys {self.keys}, got {tuple(keys)}")
        head = ("EVAL", self.source) if whole else ("EVALSHA", self.sha)
        return (*head, len(keys), *keys, *args)

    def call(self, client: Any, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run it on a sync client."""
        return self.sent(lambda command: client.execute_command(*command), keys, args)

    def sent(
        self, send: Callable[[Command], Any], keys: Sequence[str], args: Sequence[Any] = ()
    ) -> Any:
        """Run it by `send`, which is called again if the server has not seen the script."""
        try:
            return send(self.command(keys, args))
        except NoScriptError:
            return send(self.command(keys, args, whole=True))

    async def call_async(self, client: Any, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run it on an async client."""
        try:
            return await client.execute_command(*self.command(keys, args))
        except NoScriptError:
            return await client.execute_command(*self.command(keys, args, whole=True))


@cache
def load_script(package: str, name: str, *forms: str) -> Script:
    """The script `<package>/lua/<name>.lua`; in other forms if its includes offer them."""
    file = f"{package}/lua/{name}.lua"
    header = _header(package, name)
    if "KEYS" not in header:
        raise ValueError(f"{file} has no `-- KEYS` line in its header")
    chosen: list[tuple[str, str]] = []
    body = _expanded(package, name, forms, {(package, name)}, chosen)
    headers = [*(_header(*each) for each in chosen), header]
    keys, arguments = (
        " ".join(filter(None, (each.get(kind, "") for each in headers)))
        for kind in ("KEYS", "ARGV")
    )
    source = _locals(file, keys.split(), arguments) + body
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    label = f"{file} ({' '.join(forms)})" if forms else file
    return Script(label, source, digest, tuple(keys.split()))


def as_text(reply: Any) -> str:
    """A word of a script's reply: bytes from a server; numbers, and text that was read already."""
    return reply.decode() if isinstance(reply, bytes) else str(reply)


def fields_of(found: Any) -> dict[bytes, bytes]:
    """A hash in a reply: a flat list, or the dict that redis-py makes of some."""
    return found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))


def text_fields(found: Any) -> dict[str, str]:
    """The fields of a hash in a reply, as text."""
    return {as_text(name): as_text(value) for name, value in fields_of(found).items()}


def _header(package: str, name: str) -> dict[str, str]:
    """KEYS and ARGV of a file's header, each on one line and without remarks."""
    return {
        kind: _REMARK.sub("", re.sub(r"\n-- +", " ", text)).strip()
        for kind, text in _HEADER.findall(_text(package, name))
    }


def _locals(file: str, keys: Sequence[str], arguments: str) -> str:
    """The locals that a script begins with."""
    fixed, *rest = re.split(r",? *\bthen |(?<!then )(?=for each)", arguments)
    args = fixed.split()
    bound = [
        (name.upper(), f"{table}[{n}]")
        for table, names in (("KEYS", keys), ("ARGV", args))
        for n, name in enumerate(names, 1)
    ]
    names = [name for name, _ in bound]
    if len(set(names)) < len(names) or not all(name.isidentifier() for name in names):
        raise ValueError(f"{file} needs a plain name of its own for each key and argument: {names}")
    lines = [f"local {name} = {value}" for name, value in bound]
    if rest:
        lines.append(f"local REST = {len(args) + 1}")
    first = "REST"
    for rows in map(_ROWS.fullmatch, rest):
        if rows is None:
            break
        what, width = rows[1], len(rows[2].split())
        counted = f"HOW_MANY_{what.upper()}"
        after = f"{first} + {width} * {counted}" if counted in names else "#ARGV + 1"
        if after == "#ARGV + 1" and rows.string is not rest[-1]:
            raise ValueError(f"{file} needs how_many_{what}, to find the rows after these")
        lines.append(_iterator(f"each_{what}".rstrip("_"), first, width, after))
        first = after
    return "".join(f"{line}\n" for line in lines)


def _iterator(name: str, first: str, width: int, after: str) -> str:
    row = ", ".join(f"ARGV[i + {n}]" if n else "ARGV[i]" for n in range(width))
    return (
        f"local function {name}()\n"
        f"  local i, after = {first} - {width}, {after}\n"
        "  return function()\n"
        f"    i = i + {width}\n"
        f"    if i < after then return {row} end\n"
        "  end\n"
        "end"
    )


def _expanded(
    package: str,
    name: str,
    forms: tuple[str, ...],
    seen: set[tuple[str, str]],
    chosen: list[tuple[str, str]],
) -> str:
    def included(line: re.Match[str]) -> str:
        file, other, form = line.groups()
        special = (form or other) in forms
        if form and not (other or special):
            return ""
        owner, _, name = (other if other and special else file).rpartition(":")
        wanted = (owner or package, name)
        if wanted in seen:
            return ""
        seen.add(wanted)
        if special:
            chosen.append(wanted)
        return _expanded(*wanted, forms, seen, chosen)

    return _INCLUDE.sub(included, _of_forms(_text(package, name), forms))


def _of_forms(text: str, forms: tuple[str, ...]) -> str:
    """The lines of all forms and of these. A pattern would take most of the loader's time."""
    if " -- if " not in text:
        return text
    kept = []
    for line in text.splitlines():
        code, mark, form = line.rpartition(" -- if ")
        if not (mark and form.isidentifier()):
            kept.append(line)
        elif form in forms:
            kept.append(code)
    return "\n".join([*kept, ""])


@cache
def _text(package: str, name: str) -> str:
    return (files(package) / "lua" / f"{name}.lua").read_text(encoding="utf-8")


T = TypeVar("T")


def chunks(items: list[T], size: int) -> list[list[T]]:
    """The items in order, `size` at a time; the last part may be shorter."""
    if 0 < len(items) <= size:
        return [items]
    return [items[start : start + size] for start in range(0, len(items), size)]
