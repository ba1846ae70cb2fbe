"""verl's execution pool: functions, called under one limit for all processes.

    pool = init_execution_pool(num_workers=8, rate_limit=10)
    value = await pool.execute.remote(function, 1, 2)       # in coroutines
    value = pool.execute.remote(function, 1, 2).result()    # in threads

No Ray: a pool is threads of this process, or in `ProcessMode` processes of its own,
and the limit is a gate in Redis. A function that raises gives None, as verl's does,
and a line in the log; what fails on our side raises.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, TypeVar

from ground.numbers import check_whole
from ground.process import in_forked_child
from ground.redis.connect import AnyRedis
from limiter import SyncPermit, TokenBucket
from worker.tool.children import Children, ExecutionLost
from worker.tool.config import redis_here

GATE = "rate-limiter"


class TokenBucketWorker:
    """A worker with at most `rate_limit` permits at once, over every process that names the same
    gate.

    Nothing is asked of Redis before the first call. A limit that is in Redis
    wins over the one given here; a difference is logged.
    """

    def __init__(
        self,
        rate_limit: int,
        *,
        redis: AnyRedis | None = None,
        gate: str = GATE,
    ) -> None:
        self.rate_limit = rate_limit
        self._redis = redis
        self._name = gate
        self._made: TokenBucket | None = None
        self._held: deque[SyncPermit] = deque()

    @property
    def gate(self) -> TokenBucket:
        if self._made is None:
            self._made = TokenBucket(redis_here(self._redis), self._name, limit=self.rate_limit)
        return self._made

    def acquire(self) -> None:
        """Wait for a permit. Raises `GateError` if Redis does not answer."""
        self._held.append(self.gate.sync.acquire())

    def release(self) -> None:
        """Give one back; harmless when this object holds none."""
        try:
            permit = self._held.popleft()
        except IndexError:
            return
        permit.release()

    def get_current_count(self) -> int:
        """The permits in use now, by all processes."""
        return self.gate.sync.status().in_flight


log = logging.getLogger("penstock.tool")

T = TypeVar("T")


class PoolMode(Enum):
    """The mode says where a pool calls its functions."""

    ThreadMode = 1
    ProcessMode = 2


class ExecutionWorker:
    """A worker calls functions in the calling thread, each under a permit of the gate."""

    def __init__(
        self,
        enable_global_rate_limit: bool = True,
        rate_limit: int = 10,
        *,
        redis: AnyRedis | None = None,
        gate: str = GATE,
    ) -> None:
        self.rate_limit_worker = (
            TokenBucketWorker(rate_limit, redis=redis, gate=gate)
            if enable_global_rate_limit
            else None
        )

    def ping(self) -> bool:
        return True

    def execute(self, fn: Callable[..., T], *fn_args: Any, **fn_kwargs: Any) -> T | None:
        with self._permit():
            try:
                return fn(*fn_args, **fn_kwargs)
            except ExecutionLost:
                raise
            except (Exception, SystemExit):  # sys.exit in it would end the trainer
                log.warning("error when executing code", exc_info=True)
                return None

    def _permit(self) -> AbstractContextManager[Any]:
        limiter = self.rate_limit_worker
        return nullcontext() if limiter is None else limiter.gate.hold()


class Pending(Future[Any]):
    """The future that `.remote` returns: awaited in coroutines, `result()` in threads."""

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.wrap_future(self).__await__()


class Remote:
    """A method as an actor's handle has it: `pool.execute.remote(…)`."""

    def __init__(self, remote: Callable[..., Pending]) -> None:
        self.remote = remote


class ExecutionPool:
    """The pool that `init_execution_pool` returns. Threads and processes start when they are
    needed."""

    def __init__(self, worker: ExecutionWorker, num_workers: int, mode: PoolMode) -> None:
        check_whole("num_workers", num_workers)
        self._worker = worker
        self._num_workers = num_workers
        self._in_processes = PoolMode(mode) is PoolMode.ProcessMode
        self._forget_parent()
        in_forked_child(self._forget_parent)
        self.execute = Remote(self._execute)
        self.ping = Remote(lambda: self._submit(worker.ping))

    def _forget_parent(self) -> None:
        self._guard = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._children = Children() if self._in_processes else None

    @property
    def rate_limit_worker(self) -> TokenBucketWorker | None:
        return self._worker.rate_limit_worker

    def close(self) -> None:
        """End the threads, and processes with what they run. Harmless when repeated."""
        with self._guard:
            threads, self._threads = self._threads, None
        if threads is None:
            return
        threads.shutdown(wait=False, cancel_futures=True)
        if self._children is not None:
            self._children.close()  # ends what the threads wait for
        threads.shutdown()
        if self._children is not None:
            self._children.close()  # and what a thread had just begun

    def _execute(self, fn: Callable[..., Any], *fn_args: Any, **fn_kwargs: Any) -> Pending:
        if self._children is None:
            return self._submit(self._worker.execute, fn, *fn_args, **fn_kwargs)
        return self._submit(self._worker.execute, self._children.call, fn, *fn_args, **fn_kwargs)

    def _submit(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Pending:
        pending = Pending()

        def run() -> None:
            if not pending.set_running_or_notify_cancel():
                return
            try:
                value = call(*args, **kwargs)
            except BaseException as failure:  # noqa: BLE001 - the caller gets any error
                pending.set_exception(failure)
            else:
                pending.set_result(value)

        turn = self._running().submit(run)
        turn.add_done_callback(lambda turn: pending.cancel() if turn.cancelled() else None)
        return pending

    def _running(self) -> ThreadPoolExecutor:
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_workers, "penstock-pool")
            return self._threads


def init_execution_pool(
    num_workers: int,
    enable_global_rate_limit: bool = True,
    rate_limit: int = 10,
    mode: PoolMode = PoolMode.ThreadMode,
    *,
    redis: AnyRedis | None = None,
    gate: str = GATE,
) -> ExecutionPool:
    """A pool of `num_workers` threads or processes; see the module."""
    worker = ExecutionWorker(enable_global_rate_limit, rate_limit, redis=redis, gate=gate)
    return ExecutionPool(worker, num_workers, mode)
