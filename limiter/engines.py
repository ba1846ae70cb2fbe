"""The engines of this process: one for each Redis, ended with it, and anew after a fork."""

import atexit
import os
import threading

from ground import RedisTarget
from limiter.engine import Engine

_engines: dict[tuple[RedisTarget, str], Engine] = {}
_engines_guard = threading.Lock()


def engine_for(target: RedisTarget, gate: str = "") -> Engine:
    """This process's engine for a Redis; started on first use, and anew after a fork.

    On a Cluster each gate has an engine of its own: the node that keeps it may fail
    alone, and a blocked command serves one slot.
    """
    key = (target, gate if target.kind == "cluster" else "")
    with _engines_guard:
        engine = _engines.get(key)
        if engine is None or engine.stopped:
            engine = _engines[key] = Engine(target)
        return engine


def stop_all() -> None:
    for engine in list(_engines.values()):
        engine.stop()


def _forget_parent() -> None:
    """A forked child has none of its parent's threads, and none of its permits."""
    global _engines_guard
    _engines_guard = threading.Lock()
    for engine in _engines.values():
        engine.stopped = True
    _engines.clear()


atexit.register(stop_all)
os.register_at_fork(after_in_child=_forget_parent)
