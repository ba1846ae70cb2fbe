"""The keys that the code makes, read from its text.

A key is made by `tagged(kind, name, part)` or is a literal that begins with
`penstock:`. The kind and the part are literals, or the part runs over a tuple of
literals; anything else cannot be listed, and is an error here. What varies is
written `<>`, the hash tag `{}`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import docstrings, tree


def keys_in(file: Path) -> Iterator[str]:
    module = tree(file)
    loops = _loops(module)
    seen = docstrings(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) == "tagged":
            yield from _tagged(node, loops, file)
        elif isinstance(node, ast.JoinedStr):
            seen |= {id(piece) for piece in node.values}
            yield from _literal(_template(node))
        elif isinstance(node, ast.Constant) and id(node) not in seen:
            yield from _literal(str(node.value))


def _literal(text: str) -> Iterator[str]:
    if re.match(r"penstock:\S", text):  # `penstock: …` is what the command says on stderr
        yield plain(text)


def plain(key: str) -> str:
    """`penstock:gate:{code}:inbox:<process>` as `penstock:gate:{}:inbox:<>`."""
    return re.sub(r"<[^>]*>", "<>", re.sub(r"\{[^}]*\}", "{}", key))


def _tagged(call: ast.Call, loops: dict[str, list[str]], file: Path) -> Iterator[str]:
    kind, _, *rest = call.args
    assert isinstance(kind, ast.Constant), f"{file}:{call.lineno}: the kind must be a literal"
    for part in _parts(rest[0], loops, file) if rest else [""]:
        yield plain(f"penstock:{kind.value}:{{}}" + (f":{part}" if part else ""))


def _parts(node: ast.expr, loops: dict[str, list[str]], file: Path) -> list[str]:
    match node:
        case ast.Constant():
            return [str(node.value)]
        case ast.JoinedStr():
            return [_template(node)]
        case ast.Name(id=name) if name in loops:
            return loops[name]
    raise AssertionError(f"{file}:{node.lineno}: the part must be a literal, or run over literals")


def _loops(module: ast.Module) -> dict[str, list[str]]:
    """Names that run over a tuple of literals."""
    found: dict[str, list[str]] = {}
    constants = {
        node.targets[0].id: node.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.comprehension | ast.For) and isinstance(node.target, ast.Name):
            over = node.iter
            over = constants.get(over.id, over) if isinstance(over, ast.Name) else over
            if isinstance(over, ast.Tuple | ast.List):
                literals = [e.value for e in over.elts if isinstance(e, ast.Constant)]
                if len(literals) == len(over.elts):
                    found.setdefault(node.target.id, []).extend(map(str, literals))
    return found


def _template(node: ast.JoinedStr) -> str:
    return "".join(
        str(piece.value) if isinstance(piece, ast.Constant) else "<>" for piece in node.values
    )


def _called(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))
