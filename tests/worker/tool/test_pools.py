"""verl's execution pool without Ray: order, the limit over processes, and functions that fail."""

import asyncio
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import threading
from concurrent.futures import wait
from typing import Any

import pytest

from ground import SettingError
from limiter import GateUnavailable, TokenBucket
from tests.harness import killing
from tests.harness.servers import until
from tests.worker.tool.called import (
    die,
    leaves,
    never_ends,
    overlapping,
    pid,
    rotten_at_ten,
    unsendable,
)
from worker.tool import (
    ExecutionLost,
    ExecutionWorker,
    PoolMode,
    TokenBucketWorker,
    init_execution_pool,
)
from worker.tool.pools import GATE

MODES = [PoolMode.ThreadMode, PoolMode.ProcessMode]


@pytest.fixture(params=MODES, ids=lambda mode: mode.name)
def mode(request: pytest.FixtureRequest) -> PoolMode:
    return request.param


@pytest.fixture
def pools(mode: PoolMode, url: str) -> Any:
    made = []

    def make(num_workers: int = 2, **options: Any) -> Any:
        made.append(init_execution_pool(num_workers, mode=mode, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.close()


class TestSingleNodeRateLimiterCase:
    def test_rate_limiter(self, pools, url) -> None:
        """Results in the order of the calls, and never more at once than the limit."""
        pool = pools(num_workers=3, enable_global_rate_limit=True, rate_limit=2)
        calls = [pool.execute.remote(overlapping, url, n) for n in range(6)]
        results = [call.result(150) for call in calls]
        assert [number for number, _ in results] == list(range(6))
        assert max(at_once for _, at_once in results) == 2

    def test_rotten_execution(self, pools, caplog) -> None:
        """One of twenty raises: it alone has no value, and no permit is missing."""
        pool = pools(enable_global_rate_limit=True, rate_limit=6)
        calls = [pool.execute.remote(rotten_at_ten, n) for n in range(20)]
        values = [call.result(150) for call in calls]
        assert values == [*range(10), None, *range(11, 20)]
        until(lambda: pool.rate_limit_worker.get_current_count() == 0, "the permits")
        assert "rotten" in caplog.text

    def test_without_the_limit_nothing_is_asked_of_redis(self, pools, monkeypatch) -> None:
        monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://127.0.0.1:1")
        pool = pools(enable_global_rate_limit=False)
        calls = [pool.execute.remote(rotten_at_ten, n) for n in range(12)]
        assert [call.result(150) for call in calls] == [*range(10), None, 11]
        assert pool.rate_limit_worker is None


def one_of_the_processes(url: str, number: int) -> dict[str, Any]:
    """A scenario: a process of a trainer with a pool of its own."""
    os.environ["PENSTOCK_REDIS_URL"] = url
    pool = init_execution_pool(num_workers=6, rate_limit=2 + number)
    calls = [pool.execute.remote(overlapping, url, n) for n in range(6)]
    most = max(call.result(150)[1] for call in calls)
    limiter = pool.rate_limit_worker
    assert limiter is not None
    status = limiter.gate.sync.status()
    pool.close()
    return {"most": most, "limit": status.limit}


class TestMultiNodeRateLimiterCase:
    def test_rate_limiter(self, url, real_redis) -> None:
        """Two processes with six calls each share one limit, that of whoever was first."""
        TokenBucketWorker(2, redis=url).get_current_count()
        with (
            killing.Child(one_of_the_processes, url, 0) as first,
            killing.Child(one_of_the_processes, url, 5) as second,
        ):
            ended = [first.outcome(), second.outcome()]
        said = [outcome.returned for outcome in ended]
        assert [one["limit"] for one in said] == [2, 2]
        assert max(one["most"] for one in said) == 2


def test_basic_multi_process_init(url, real_redis) -> None:
    """Pools of several processes find one limiter, and count together."""
    here = TokenBucketWorker(4, redis=url)
    here.acquire()
    program = (
        "import json\n"
        "from worker.tool import init_execution_pool\n"
        "pool = init_execution_pool(num_workers=2, rate_limit=9)\n"
        "assert pool.ping.remote().result(150) is True\n"
        "worker = pool.rate_limit_worker\n"
        "worker.acquire()\n"
        "print(json.dumps([worker.gate.sync.status().limit, worker.get_current_count()]))\n"
        "worker.release(); worker.release()\n"
    )
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", program], env=os.environ | {"PENSTOCK_REDIS_URL": url},
            capture_output=True, text=True, timeout=200, check=True,
        )  # fmt: skip
        assert json.loads(run.stdout) == [4, 2]
        until(lambda: here.get_current_count() == 1, "the other's permit")
    assert real_redis.smembers("penstock:gates") == {GATE.encode()}
    here.release()
    here.release()
    until(lambda: here.get_current_count() == 0, "ours")


async def test_a_call_can_be_awaited(pools) -> None:
    pool = pools(rate_limit=2)
    assert await pool.execute.remote(rotten_at_ten, 3) == 3
    assert await asyncio.gather(*(pool.execute.remote(rotten_at_ten, n) for n in range(5))) == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    assert await pool.ping.remote() is True


async def test_a_function_that_exits_gives_none_and_ends_nobody(pools) -> None:
    pool = pools(enable_global_rate_limit=False)
    assert await pool.execute.remote(leaves) is None


def test_threads_share_our_process_and_processes_do_not(pools, mode) -> None:
    pool = pools(enable_global_rate_limit=False)
    found = {pool.execute.remote(pid).result(150) for _ in range(4)}
    assert (found == {os.getpid()}) is (mode is PoolMode.ThreadMode)


def test_a_call_that_is_cancelled_before_its_turn_never_runs(pools, real_redis, url) -> None:
    pool = pools(num_workers=1, rate_limit=1)
    held = TokenBucketWorker(1, redis=url)
    held.acquire()
    waiting = [pool.execute.remote(rotten_at_ten, n) for n in range(2)]
    assert waiting[1].cancel()
    held.release()
    wait(waiting)
    assert waiting[0].result() == 0
    assert waiting[1].cancelled()


def test_a_forked_child_that_closes_its_pool_leaves_its_parents_processes(pools) -> None:
    pool = pools(num_workers=1, enable_global_rate_limit=False)
    before = pool.execute.remote(pid).result(150)
    child = multiprocessing.get_context("fork").Process(target=_use_and_close, args=(pool,))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert pool.execute.remote(pid).result(150) == before


def _use_and_close(pool: Any) -> None:
    assert pool.execute.remote(rotten_at_ten, 3).result(150) == 3
    pool.close()


def test_closing_a_pool_cancels_what_waits_for_a_thread(pools, url) -> None:
    pool = pools(num_workers=1, rate_limit=1)
    limiter = TokenBucketWorker(1, redis=url)
    limiter.acquire()
    running, waiting = (pool.execute.remote(rotten_at_ten, n) for n in range(2))
    threading.Timer(0.05, limiter.release).start()
    pool.close()
    assert waiting.cancelled()
    assert running.done()
    assert pool.execute.remote(rotten_at_ten, 1).result(150) == 1


@pytest.mark.parametrize("mode", [PoolMode.ProcessMode], indirect=True)
class TestProcesses:
    def test_a_function_that_takes_its_process_down_takes_nothing_else(self, pools) -> None:
        pool = pools(num_workers=1, rate_limit=1)
        with pytest.raises(ExecutionLost, match="died, exit code -9"):
            pool.execute.remote(die).result(150)
        assert pool.execute.remote(rotten_at_ten, 1).result(150) == 1
        until(lambda: pool.rate_limit_worker.get_current_count() == 0, "the permits")

    def test_what_cannot_be_sent_is_refused_with_the_reason(self, pools) -> None:
        pool = pools(enable_global_rate_limit=False)
        with pytest.raises(ExecutionLost, match="defined at the top of a module"):
            pool.execute.remote(lambda: 1).result(150)

    def test_a_result_that_cannot_be_sent_is_the_functions_failure(self, pools, caplog) -> None:
        pool = pools(enable_global_rate_limit=False)
        assert pool.execute.remote(unsendable).result(150) is None
        assert "local object" in caplog.text

    def test_a_process_that_does_not_start_is_no_failure_of_the_function(
        self, pools, monkeypatch
    ) -> None:
        """As in a daemonic process, such as a data loader's: it may have no children."""
        monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
        pool = pools(enable_global_rate_limit=False)
        with pytest.raises(ExecutionLost, match=r"started.*: daemonic processes"):
            pool.execute.remote(rotten_at_ten, 1).result(150)

    def test_a_closed_pool_leaves_no_process(self, pools, url, real_redis) -> None:
        pool = pools(enable_global_rate_limit=False)
        running = pool.execute.remote(never_ends, url)
        until(lambda: real_redis.get("began"), "it to begin")
        pool.close()
        with pytest.raises(ExecutionLost):
            running.result(150)
        assert multiprocessing.active_children() == []


def runs_for_ever(url: str) -> None:
    """A scenario: a trainer that is killed while its pool works."""
    os.environ["PENSTOCK_REDIS_URL"] = url
    pool = init_execution_pool(1, rate_limit=1, mode=PoolMode.ProcessMode)
    pool.execute.remote(never_ends, url).result()


def test_processes_end_with_a_parent_that_was_killed(url, real_redis) -> None:
    with killing.Child(runs_for_ever, url) as trainer:
        until(lambda: real_redis.get("began"), "it to begin")
        child = int(real_redis.get("began"))
        trainer.kill()
        until(lambda: not os.path.exists(f"/proc/{child}"), "its pool's process to end")


def test_a_gate_that_cannot_be_asked_raises(monkeypatch) -> None:
    hasty = functools.partial(TokenBucket, patience=0.1)
    monkeypatch.setattr("worker.tool.pools.TokenBucket", hasty)
    worker = ExecutionWorker(True, 3, redis="redis://127.0.0.1:1")
    with pytest.raises(GateUnavailable):
        worker.execute(pid)


def test_a_pool_needs_a_worker() -> None:
    with pytest.raises(SettingError, match="num_workers: must be a whole number from 1"):
        init_execution_pool(0)
