"""Each package's `__init__` is its public API: sorted, complete, and nothing else."""

import ast
import importlib
from pathlib import Path

from tests.architecture.source import PACKAGES, ROOT, name_of, tree

INITS = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("__init__.py"))]


def test_all_is_sorted_and_is_exactly_what_is_exported() -> None:
    wrong = {name_of(init): why for init in INITS if (why := _fault(init))}
    assert wrong == {}


def _fault(init: Path) -> str:
    body = [inner for node in tree(init).body for inner in _also_for_types(node)]
    bound = {name for node in body for name in _bound(node) if not name.startswith("_")}
    bound |= {"__version__"} if "__version__" in init.read_text() else set()
    declared = [
        element.value
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in _bound(node)
        for element in node.value.elts
    ]
    if declared != sorted(declared, key=_as_ruff_sorts):
        return f"not sorted: {declared}"
    if set(declared) != bound:
        return f"not what is bound: {set(declared) ^ bound}"
    package = importlib.import_module(".".join(init.relative_to(ROOT).parts[:-1]))
    absent = [name for name in declared if not hasattr(package, name)]
    return f"not there: {absent}" if absent else ""


def test_each_package_says_what_it_is_for() -> None:
    assert [name_of(init) for init in INITS if not ast.get_docstring(tree(init))] == []


def _also_for_types(node: ast.stmt) -> list[ast.stmt]:
    """What is imported for type checkers is exported too, by a lazy `__getattr__`."""
    lazy = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    return node.body if lazy else [node]


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then functions, as rule RUF022 has it."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def _bound(node: ast.stmt) -> list[str]:
    match node:
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PACKAGES:
            return [alias.asname or alias.name for alias in node.names]
        case ast.Assign():
            return [target.id for target in node.targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.ClassDef(name=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
    return []
