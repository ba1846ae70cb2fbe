"""The tree as the architecture tests read it."""

import ast
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORMS = (
    ("gated", "full", "with_breaker"),
    ("gated", "full"),
    ("full", "existing"),
    ("full",),
    ("with_breaker",),
    ("breaks",),
    (),
)  # of scripts, as they are loaded
PACKAGES = ("ground", "limiter", "buffer", "gateway", "jail", "worker", "penstock")


def modules(*packages: str) -> list[Path]:
    return [
        file for package in packages or PACKAGES for file in sorted((ROOT / package).rglob("*.py"))
    ]


def scripts() -> list[Path]:
    return _files(PACKAGES, "*.lua")


def _files(packages: Sequence[str], pattern: str) -> list[Path]:
    return [file for package in packages for file in sorted((ROOT / package).rglob(pattern))]


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imported(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, also inside functions, with its line."""
    package = file.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = ".".join(package[: -node.level]) if node.level else ""
            yield ".".join(filter(None, (parent, node.module))), node.lineno
        elif isinstance(node, ast.Call) and _names_a_module(node):
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value, node.lineno


def _names_a_module(call: ast.Call) -> bool:
    called = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    )
    return called in ("import_module", "__import__") and bool(call.args)


def docstrings(module: ast.Module) -> set[int]:
    """Ids of the nodes that are docstrings."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(module)
        if isinstance(node, owners) and node.body and isinstance(node.body[0], ast.Expr)
    }
