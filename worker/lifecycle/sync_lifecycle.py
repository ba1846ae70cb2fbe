"""A lifecycle's face for code that blocks its thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from worker.lifecycle.held import checked
from worker.lifecycle.provider import SandboxSpec
from worker.lifecycle.sandbox import SyncSandbox
from worker.process_loop import from_thread

if TYPE_CHECKING:
    from worker.lifecycle.lifecycle import SandboxLifecycle


class SyncLifecycle:
    """What `lifecycle.sync` gives: every method as on `SandboxLifecycle`, but it blocks."""

    def __init__(self, lifecycle: "SandboxLifecycle") -> None:
        self._lifecycle = lifecycle

    @contextmanager
    def open(self, spec: SandboxSpec | None = None) -> Iterator[SyncSandbox]:
        sandbox = from_thread(self._lifecycle.start(spec))
        try:
            with checked(sandbox._box):
                yield sandbox.sync
        finally:
            from_thread(self._lifecycle.stop(sandbox))

    def start(self, spec: SandboxSpec | None = None, **options: Any) -> SyncSandbox:
        return from_thread(self._lifecycle.start(spec, **options)).sync

    def stop(self, sandbox: SyncSandbox) -> bool:
        return from_thread(self._lifecycle.stop(sandbox._sandbox))

    @contextmanager
    def session(self, instance_id: str, spec: SandboxSpec | None = None) -> Iterator[SyncSandbox]:
        sessions = self._lifecycle._sessions
        sandbox = from_thread(sessions.enter(instance_id, spec or SandboxSpec()))
        try:
            with checked(sandbox._box):
                yield sandbox.sync
        finally:
            from_thread(sessions.leave(sandbox))

    def end_session(self, instance_id: str) -> bool:
        return from_thread(self._lifecycle.end_session(instance_id))

    def close(self) -> None:
        from_thread(self._lifecycle.close())
