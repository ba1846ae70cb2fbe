"""Names of a package that are imported when they are first asked for."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, modules: Mapping[str, str], advice: str = "") -> Callable[[str], Any]:
    """The `__getattr__` of a package, by name and the module that has it. `advice` follows what is
    said of any other name."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}")
        return getattr(import_module(modules[name]), name)

    return find
