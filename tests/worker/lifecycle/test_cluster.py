"""A run's registry is one slot: sandboxes on a Redis Cluster."""

from tests.harness.cluster import Cluster
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle
from worker.lifecycle.reaper.reaper import Reaper
from worker.lifecycle.registry.registry import runs


async def test_sandboxes_of_several_runs_start_and_end_on_a_cluster(
    redis_cluster: Cluster, cloud
) -> None:
    target = redis_cluster.target
    eye = Reaper(target, settings=quick())
    names = ["red", "green", "blue"]
    lives = [SandboxLifecycle(target, cloud.provider, run=run, settings=quick()) for run in names]
    for life in lives:
        async with life.open(), life.session("sample-7"):
            assert cloud.live >= 2
        dead = await life.start()
        life.keeper.drop(dead._box)
        life.registry.condemn(dead.name, "", "its owner died")
    assert runs(target) == sorted(names)
    for run in names:
        await eye.end(run, [record.name for record in eye._registry(run).look().records], "over")
    assert cloud.live == 0
    for life in lives:
        assert life.registry.retire(0.0)
        life.registry.close()
    assert runs(target) == []
    await eye.close()
