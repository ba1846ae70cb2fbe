"""Generators: files `*_generator.py` with `TASK_TYPE` and `run_rollout(data)`.

The built-in math task is always there, unless a file of the folder has its name.
"""

import importlib.util
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from buffer.errors import GeneratorError
from buffer.generator import base_generator
from buffer.group_functions import GroupFunctions

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Generator:
    """A task type: the file that generates for it, and its optional functions."""

    task_type: str
    path: Path
    functions: GroupFunctions


def discover(folder: Path | None) -> dict[str, Generator]:
    """Every generator by its task type. `GeneratorError` names each file with a fault."""
    built_in = Path(base_generator.__file__)
    found = {"math": Generator("math", built_in, GroupFunctions.of_module(base_generator))}
    named: dict[str, Path] = {}
    faults: list[str] = []
    files = sorted(folder.glob("*_generator.py")) if folder else []
    if folder and folder.is_dir() and not files:
        log.warning("PENSTOCK_GENERATORS: no file there ends in _generator.py; only the math task "
                    "can be generated for", extra={"folder": str(folder)})  # fmt: skip
    for path in files:
        try:
            generator = _load(path)
        except GeneratorError as fault:
            faults.append(str(fault))
            continue
        if other := named.get(generator.task_type):
            faults.append(f"{path}: TASK_TYPE {generator.task_type!r} is {other}'s already")
            continue
        named[generator.task_type] = path
        found[generator.task_type] = generator
    if folder and not folder.is_dir():
        faults.append(f"{folder} is not a folder")
    if faults:
        raise GeneratorError("PENSTOCK_GENERATORS: " + "; ".join(faults))
    return found


def load_module(path: Path) -> ModuleType:
    """Run a generator file as a module of its own name. It may import from the folder that the
    server was started in."""
    if "" not in sys.path:
        sys.path.append("")
    name = f"penstock_generator_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GeneratorError(f"{path} cannot be loaded as a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its functions and classes can be found by name
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        raise GeneratorError(f"{path}: {type(fault).__name__}: {fault}") from fault
    return module


def _load(path: Path) -> Generator:
    module = load_module(path)
    task_type = getattr(module, "TASK_TYPE", None)
    if not isinstance(task_type, str) or not task_type:
        raise GeneratorError(f"{path} does not define TASK_TYPE as a string")
    if not callable(getattr(module, "run_rollout", None)):
        raise GeneratorError(f"{path} does not define run_rollout(data)")
    return Generator(task_type, path, GroupFunctions.of_module(module))
