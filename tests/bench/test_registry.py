"""The suite `registry`: whose calls are measured, and that all sandboxes have ended."""

import ground
from bench._registry_client import OF_A_START, Simulated, measured
from worker.lifecycle.registry.registry import Registry


async def test_each_start_is_measured_once_and_every_sandbox_ends(redis: ground.Client) -> None:
    found = await measured(redis, Simulated(0.0, 0.5), clients=3, sandboxes=7)
    assert len(found.starts) == len(found.of_start) == 7
    assert len(found.calls) == 7 * (len(OF_A_START) + 3)  # STARTING and READY; TERMINATING; forget
    seen = Registry(redis, "bench").look()
    assert (seen.count, seen.counters["opened"], seen.counters["ended"]) == (0, 7, 7)
