"""Which module imports which, and where they go round."""

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.architecture.source import ROOT, tree

Graph = dict[str, set[str]]


def imports_of(files: Iterable[Path]) -> Graph:
    """Each module of these, and those of them that it imports, wherever in it that stands."""
    named = {module_of(file): file for file in files}
    return {name: _imported(name, file, named) - {name} for name, file in named.items()}


def circles(graph: Graph) -> list[list[str]]:
    """The modules of each circle, sorted: the strongly connected components (Tarjan's)."""
    found: list[list[str]] = []
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in index:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            at = stack.index(module)
            circle, stack[at:] = stack[at:], []
            if len(circle) > 1:
                found.append(sorted(circle))

    for module in graph:
        if module not in index:
            visit(module)
    return found


def arrows_within(parent: str, graph: Graph) -> Graph:
    """Which child of a folder imports which other, whatever lies below them."""
    arrows: Graph = {}
    for module, imported in graph.items():
        if child := _child(module, parent):
            others = {other for each in imported if (other := _child(each, parent))}
            arrows.setdefault(child, set()).update(others - {child})
            for other in others:
                arrows.setdefault(other, set())
    return arrows


def _child(module: str, parent: str) -> str:
    """Empty for the folder itself, and for what is not in it."""
    within = f"{parent}." if parent else ""
    return module[len(within) :].partition(".")[0] if module.startswith(within) else ""


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, file: Path, named: dict[str, Path]) -> set[str]:
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                found.add(inner if inner in named else module)
    return found & named.keys()
