"""Functions of trainers that no registry has: taken out of a checkout's file, and run alone."""

import ast
import os
from pathlib import Path
from typing import Any

import pytest


def checkout(variable: str) -> Path:
    """The one that the environment names; the test is skipped without."""
    if not (named := os.environ.get(variable)):
        pytest.skip(f"{variable} names no checkout")
    return Path(named)


def function_of(file: Path, name: str, given: dict[str, Any]) -> Any:
    """The function or method of that name, with `given` in the place of what its module imports."""
    found = next(
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    # No annotation is evaluated: their names are of the module's imports.
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    module = ast.fix_missing_locations(ast.Module([future, found], []))
    exec(compile(module, str(file), "exec"), given)
    return given[name]
