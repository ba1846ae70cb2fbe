"""The reference of the Python API: each public name as its source has it, without its code.

    packages → public names → one block each, as a stub file would show it

What a class inherits from a private base of Penstock's is shown in it; what it inherits from a
public one, the base shows.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

PACKAGES = {
    "worker": "Jobs: submit programs, read results, run them.",
    "limiter": "Gates: limit what runs at once, and how often it starts.",
    "buffer": "Groups of trajectories, from the agents to the trainer.",
    "buffer.generator": "Generators of trajectories, which the buffer's server runs.",
    "jail": "The embedded sandbox.",
    "jail.judge": "Many cases for one program.",
    "jail.sessions": "Session sandboxes of one machine, without a lifecycle.",
    "jail.images": "Images that session sandboxes start from.",
    "worker.lifecycle": "Session sandboxes, started under one cap and always ended.",
    "worker.lifecycle.local": "Session sandboxes on this machine.",
    "worker.reward": "Scores of programs.",
    "worker.hosts": "Rewards in the words of each trainer.",
    "worker.rollout": "Conversations with tools.",
    "worker.tool": "The tool that trainers give to a model.",
    "worker.contract": "Checks that a sandbox or a provider of your own passes.",
}
_OURS = ("worker", "jail", "limiter", "buffer", "ground", "penstock")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    parts = [
        "# Python API\n\nThe public names of each package, with signatures and docstrings from the"
        " source. Everything else may change.\n\nEach coroutine has a face for threads:"
        " `SyncCodeQueue`, `SyncRolloutBuffer`, `gate.sync`, `SyncLifecycle`.\n",
        "| Package | For |\n|---|---|\n"
        + "".join(
            f"| [`{name}`](#{name.replace('.', '')}) | {words} |\n"
            for name, words in PACKAGES.items()
        ),
    ]
    for name, words in PACKAGES.items():
        parts.append(f"## {name}\n\n{words}\n")
        parts += [_block(name, public) for public in names_of(name)]
    return _formatted("\n".join(parts))


def names_of(package: str) -> list[str]:
    """What it exports. Types first, then functions, then what goes wrong."""
    module = importlib.import_module(package)
    return sorted(module.__all__, key=lambda name: (_rank(getattr(module, name)), name))


def _rank(value: Any) -> int:
    if inspect.isclass(value):
        return 2 if issubclass(value, BaseException) else 0
    return 1


def _block(package: str, name: str) -> str:
    value = getattr(importlib.import_module(package), name)
    shown = _shown(name, value)
    return f"### {package}.{name}\n\n```pyi\n{shown}\n```\n"


def _shown(name: str, value: Any) -> str:
    if inspect.isclass(value):
        return _class(value)
    if inspect.isfunction(value):
        return _function(_tree(value))
    doc = inspect.getdoc(value) if callable(value) else None
    return f"{name} = {_constant(value)}" + (f"\n{_quoted(doc)}" if doc else "")


def _constant(value: Any) -> str:
    if isinstance(value, tuple) and all(inspect.isclass(one) for one in value):
        return f"({', '.join(one.__name__ for one in value)})"
    said = repr(value)
    return said if len(said) <= 1000 else f"{type(value).__name__}(...)"


def _class(value: type) -> str:
    tree = _tree(value)
    bases = ", ".join(ast.unparse(base) for base in tree.bases)
    lines = [f"@{ast.unparse(mark)}" for mark in tree.decorator_list]
    lines += [f"class {value.__name__}({bases}):" if bases else f"class {value.__name__}:"]
    body = [_quoted(doc)] if (doc := ast.get_docstring(tree)) else []
    body += _members(value)
    return "\n".join([*lines, textwrap.indent("\n".join(body or ["..."]), "    ")])


def _members(value: type) -> list[str]:
    seen: set[str] = set()
    found = []
    for base in value.__mro__:
        if base is not value and (not _private(base) or _public_elsewhere(base)):
            continue
        for part in _tree(base).body:
            name = _name(part)
            if name and name not in seen and (name == "__init__" or not name.startswith("_")):
                seen.add(name)
                found.append(_member(value, name, part))
    return found


def _member(value: type, name: str, part: ast.stmt) -> str:
    if isinstance(part, ast.Assign):  # made of another face's coroutine, as which it is called
        made = _tree(inspect.unwrap(getattr(value, name)))
        same = {field: getattr(made, field) for field in ("args", "returns", "type_params")
                if hasattr(made, field)}  # fmt: skip
        return _function(ast.FunctionDef(name, body=[ast.Pass()], decorator_list=[], **same))
    return _function(part) if isinstance(part, _Function) else _field(part)


def _field(part: Any) -> str:
    """Of pydantic's or a dataclass's field, the default and the description."""
    value = part.value
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) in ("Field", "field")):
        return ast.unparse(part)
    given = {word.arg: word.value for word in value.keywords}
    default = next(iter(value.args), given.get("default"))
    shown = f"{ast.unparse(part.target)}: {ast.unparse(part.annotation)}"
    if default is not None or "default_factory" in given:
        shown += f" = {ast.unparse(default) if default is not None else '...'}"
    said = ast.literal_eval(given["description"]) if "description" in given else ""
    return "".join(f"# {line}\n" for line in textwrap.wrap(said, 88)) + shown


def _private(base: type) -> bool:
    return base.__module__.partition(".")[0] in _OURS


def _public_elsewhere(base: type) -> bool:
    return any(base.__name__ in importlib.import_module(name).__all__ for name in PACKAGES)


def _name(part: ast.stmt) -> str:
    if isinstance(part, _Function):
        return "" if _overload_or_setter(part) else part.name
    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
        return "" if "ClassVar" in ast.unparse(part.annotation) else part.target.id
    if isinstance(part, ast.Assign) and ast.unparse(part.value).startswith("_blocking("):
        return ast.unparse(part.targets[0])
    return ""


def _overload_or_setter(function: _Function) -> bool:
    marks = {ast.unparse(mark) for mark in function.decorator_list}
    return any(mark == "overload" or mark.endswith((".setter", "validator")) for mark in marks)


def _function(function: Any) -> str:
    marks = [f"@{ast.unparse(mark)}" for mark in function.decorator_list]
    word = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    doc = ast.get_docstring(function)
    head = f"{word} {function.name}({', '.join(_arguments(function.args))}){returns}:"
    if len(head) > 100:
        inside = "".join(f"    {one},\n" for one in _arguments(function.args))
        head = f"{word} {function.name}(\n{inside}){returns}:"
    body = f"\n{textwrap.indent(_quoted(doc), '    ')}" if doc else " ..."
    return "\n".join([*marks, head + body])


def _arguments(args: ast.arguments) -> Iterator[str]:
    """One string each, as in the source."""
    positional = [*args.posonlyargs, *args.args]
    bare = [None] * (len(positional) - len(args.defaults))
    for at, (one, default) in enumerate(zip(positional, [*bare, *args.defaults], strict=True)):
        yield _argument(one, default)
        if args.posonlyargs and at == len(args.posonlyargs) - 1:
            yield "/"
    if args.vararg:
        yield f"*{_argument(args.vararg, None)}"
    elif args.kwonlyargs:
        yield "*"
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _argument(one, default)
    if args.kwarg:
        yield f"**{_argument(args.kwarg, None)}"


def _argument(one: ast.arg, default: ast.expr | None) -> str:
    noted = f"{one.arg}: {ast.unparse(one.annotation)}" if one.annotation else one.arg
    if default is None:
        return noted
    return f"{noted}{' = ' if one.annotation else '='}{ast.unparse(default)}"


def _quoted(doc: str) -> str:
    closing = "\n" if "\n" in doc else ""
    return f'"""{doc}{closing}"""'


_BLOCK = re.compile(r"(?<=^```pyi\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def _formatted(page: str) -> str:
    """Each block as ruff would write it; all of them in one call."""
    mark = "# the next block\n"
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "api.py", "-"]
    stubs = mark.join(_BLOCK.findall(page))
    done = subprocess.run(ruff, input=stubs, capture_output=True, text=True, check=True)
    blocks = iter(done.stdout.split(mark))
    return _BLOCK.sub(lambda _: next(blocks).strip() + "\n", page)


def _tree(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
