"""A gate in the shape of a semaphore, for code that takes one: it pickles, and counts cluster-wide.

    permits = GateSemaphore("redis://…", "code", limit=64)
    compute_score(url, permits, 1024, completion, cases)

However many processes hold a copy, in however many jobs, they share the one gate.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from ground.process import in_forked_child
from ground.redis.connect import AnyRedis, target_of
from limiter import Gate, LimitTimeout, SyncPermit, named_gate


class Semaphore(Protocol):
    """A semaphore as `threading`, `multiprocessing` and its managers have it."""

    def acquire(self) -> Any: ...

    def release(self) -> Any: ...


class GateSemaphore:
    """Permits of the gate `name`; without a `limit` the gate must exist.

    `orphan_hold`: seconds for which a program may outlive the process that started it, and
    its permit with it. `lease` and `patience` are as on `TokenBucket`, where a limit is given.
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str = "code",
        limit: int | None = None,
        orphan_hold: float = 0.0,
        lease: float = 30.0,
        patience: float = 30.0,
    ) -> None:
        self._target, self._name, self._limit = target_of(redis), name, limit
        self._orphan_hold, self._lease, self._patience = orphan_hold, lease, patience
        self._gate: Gate | None = None
        self._forget_parent()
        in_forked_child(self._forget_parent)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take a permit. False if none came free within the timeout; raises `GateUnavailable`
        without Redis."""
        gate = self.gate
        if not blocking and not self._orphan_hold:
            permit: Any = gate.sync.try_acquire()
            if not isinstance(permit, SyncPermit):
                return False
        else:
            try:
                longest = timeout if blocking else 0.0
                permit = gate.sync.acquire(timeout=longest, orphan_hold=self._orphan_hold)
            except LimitTimeout:
                return False
        with self._guard:
            self._held.append(permit)
        return True

    def release(self) -> None:
        with self._guard:
            if not self._held:
                raise ValueError("this process holds no permit of this semaphore")
            permit = self._held.pop()
        permit.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def gate(self) -> Gate:
        """The gate itself, to look at and to configure; opened at first use."""
        with self._guard:
            if self._gate is None:
                self._gate = named_gate(
                    self._target, self._name, self._limit,
                    lease=self._lease, patience=self._patience,
                )  # fmt: skip
            return self._gate

    def _forget_parent(self) -> None:
        """The permits that a forked child finds here are its parent's."""
        self._guard = threading.Lock()
        self._held: list[SyncPermit] = []

    def __reduce__(self) -> Any:
        manner = self._orphan_hold, self._lease, self._patience
        return GateSemaphore, (self._target, self._name, self._limit, *manner)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name!r}, limit {self._limit}, at {self._target}>"


class _PermitOfCase:
    """A permit, while a case is at work."""

    def __init__(self, semaphore: Semaphore) -> None:
        self._semaphore = semaphore
        self._held = False

    def take(self) -> None:
        self._semaphore.acquire()
        self._held = True

    def give(self) -> None:
        if self._held:
            self._held = False
            self._semaphore.release()


_turn: ContextVar[_PermitOfCase | None] = ContextVar("penstock_reward_turn", default=None)


@contextmanager
def holding(semaphore: Semaphore | None) -> Iterator[None]:
    """A permit for the length of the block, less the stretches of `handed_back` within it."""
    if semaphore is None:
        yield
        return
    turn = _PermitOfCase(semaphore)
    turn.take()
    outer = _turn.set(turn)
    try:
        yield
    finally:
        _turn.reset(outer)
        turn.give()


@contextmanager
def handed_back() -> Iterator[None]:
    """No permit for the length of the block: nothing runs while one waits to try again."""
    turn = _turn.get()
    if turn is not None:
        turn.give()
    yield
    if turn is not None:
        turn.take()
