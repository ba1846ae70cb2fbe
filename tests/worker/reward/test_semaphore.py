"""A gate in a semaphore's shape: over processes, and in verl's functions."""

import pickle
import threading

import pytest

from limiter import GateUnavailable, UnknownGate
from tests.harness import doomed, killing
from tests.harness.servers import url_of
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker.reward import GateSemaphore, check_correctness

CASES = {"inputs": [None] * 12, "outputs": [None] * 12}


def checks(semaphore: str, url: str) -> list[object]:
    """A reward process, given its semaphore as Ray gives it: pickled."""
    permits = pickle.loads(bytes.fromhex(semaphore))
    return check_correctness(url, CASES, "x", concurrent_semaphore=permits)[0]


def holds(semaphore: str) -> None:
    permits = pickle.loads(bytes.fromhex(semaphore))
    assert permits.acquire()
    doomed.reached("holding")
    threading.Event().wait()


def test_processes_with_a_copy_share_one_gate(real_redis) -> None:
    permits = pickle.dumps(GateSemaphore(url_of(real_redis), "code", limit=3)).hex()
    with ScriptedFusion(default=Answer.ok(seconds=0.05)) as fusion:
        with (
            killing.Child(checks, permits, fusion.url) as one,
            killing.Child(checks, permits, fusion.url) as other,
        ):
            assert one.outcome().returned == other.outcome().returned == [True] * 12
        assert fusion.peak == 3


def test_a_killed_holder_gives_its_permit_back(real_redis) -> None:
    semaphore = GateSemaphore(url_of(real_redis), "code", limit=1, lease=1.0)
    with killing.Child(holds, pickle.dumps(semaphore).hex()) as child:
        child.wait_for("holding")
        assert semaphore.acquire(blocking=False) is False
        child.kill()
        assert semaphore.acquire() is True
    semaphore.release()


def test_it_is_a_semaphore(redis) -> None:
    semaphore = GateSemaphore(redis, "code", limit=1)
    with semaphore as got:
        assert got is True
        assert semaphore.acquire(blocking=False) is False
        assert semaphore.acquire(timeout=0.01) is False
    assert semaphore.acquire(blocking=False) is True
    semaphore.release()
    with pytest.raises(ValueError, match="holds no permit"):
        semaphore.release()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_program_that_outlives_its_caller_holds_the_permit_for_so_long(redis, blocking) -> None:
    semaphore = GateSemaphore(redis, "code", limit=1, orphan_hold=500.0, lease=30.0)
    assert semaphore.acquire(blocking=blocking) is True
    assert semaphore.acquire(blocking=False) is False
    (lease,) = semaphore.gate.sync.status().leases
    assert lease.expires_in > 400
    semaphore.release()


def test_without_a_limit_the_gate_must_exist(redis) -> None:
    with pytest.raises(UnknownGate, match="no gate is called 'code'"):
        GateSemaphore(redis, "code").acquire()


def test_no_permit_is_held_while_a_sandbox_is_busy(real_redis, fusion, attempts) -> None:
    """With one permit, a case that backs off does not stand in the way of the others."""
    attempts(2)
    fusion.programs = {"busy\n\n": Answer.busy(retry_after=1.5)}
    free_while_waiting = []
    semaphore = GateSemaphore(real_redis, "code", limit=1)

    def look() -> None:
        fusion.wait_until(lambda: fusion.requests == 1)
        free_while_waiting.append(semaphore.acquire(timeout=100))
        free_while_waiting.append(fusion.requests)
        semaphore.release()

    other = threading.Thread(target=look)
    other.start()
    results, _ = check_correctness(
        fusion.url, {"inputs": [1], "outputs": [1]}, "busy", concurrent_semaphore=semaphore
    )
    other.join()
    assert results == [-1]
    assert free_while_waiting == [True, 1]
    assert semaphore.acquire(blocking=False) is True
    semaphore.release()


def test_a_semaphore_without_redis_is_a_failure_of_ours(private_redis, fusion) -> None:
    server = private_redis()
    semaphore = GateSemaphore(server.target, "code", limit=1, patience=0.2)
    semaphore.acquire()
    semaphore.release()
    server.kill()
    results, (metadata,) = check_correctness(
        fusion.url, {"inputs": [1], "outputs": [1]}, "x", concurrent_semaphore=semaphore
    )
    assert (results, metadata["status"], fusion.requests) == ([-1], "api_error", 0)
    assert "could not be asked" in metadata["api_request_error"]
    with pytest.raises(GateUnavailable):
        semaphore.acquire()
