"""Penstock's package `worker`, for programs beside a `worker.py` of their own.

`from penstock.worker import CodeQueue` is `from worker import CodeQueue`, whatever else has that
name on the path. From then on `import worker` gives Penstock's package in this process.
"""

import importlib
import sys
from pathlib import Path

_HOME = Path(__file__).resolve().parents[1]


def _found() -> object:
    known = sys.modules.get("worker")
    file = Path(getattr(known, "__file__", None) or "")
    if known is not None and file.parent != _HOME / "worker":
        raise ImportError(
            f"penstock.worker: {known!r} is imported already, and Penstock's package has the same "
            "name. Import penstock.worker first, or rename that module"
        )
    sys.path.insert(0, str(_HOME))
    try:
        return importlib.import_module("worker")
    finally:
        sys.path.remove(str(_HOME))


sys.modules[__name__] = _found()  # type: ignore[assignment]
