"""Other people's files, to be run as they are."""

import importlib.util
from pathlib import Path
from types import ModuleType


def module_at(path: Path) -> ModuleType:
    """The module that a file is, without the package around it."""
    spec = importlib.util.spec_from_file_location(f"upstreams_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
