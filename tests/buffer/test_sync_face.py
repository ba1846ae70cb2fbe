"""The buffer for code without an event loop."""

import inspect

import pytest

import ground
from buffer import LeaseLost, Policy, RolloutBuffer, SyncRolloutBuffer, TaskConfig
from buffer.catalog import Catalog
from buffer.rollout_buffer import SyncCatalog
from buffer.versions.slots import Slots
from tests.buffer.conftest import item

# For servers: what was checked at another door, readers that cannot acknowledge, rollouts' starts.
OF_SERVERS = {
    "write_entries", "handed", "told", "begin", "asked", "check", "check_room", "check_take",
}  # fmt: skip
OF_SERVERS_CATALOG = {"aside", "page", "pulse", "rollout", "size", "state", "unnamed"}
IN_SYNC_SLOTS = {"admit", "slot", "write", "write_many"}  # and so not made of the other face


def calls_of(face: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(face, inspect.isfunction) if name[0] != "_"}


def test_it_has_every_call_that_a_trainer_or_an_agent_makes() -> None:
    coroutines = calls_of(RolloutBuffer) - OF_SERVERS - {"aclose"}
    assert calls_of(SyncRolloutBuffer) == coroutines | {"close"}
    assert calls_of(SyncCatalog) == calls_of(Catalog) - OF_SERVERS_CATALOG


def test_it_says_whose_it_is_and_the_newest_version(redis: ground.Client) -> None:
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=2), run="first").sync
    try:
        assert (buffer.task, buffer.run, buffer.newest) == ("math", "first", -1)
        buffer.set_policy(Policy(groups_per_version=2, max_age=2))
        buffer.publish(3)
        buffer.admit(1)
        assert buffer.newest == 3
    finally:
        buffer.close()


def test_no_call_of_it_is_written_twice() -> None:
    for face, other in ((SyncRolloutBuffer, RolloutBuffer), (SyncCatalog, Catalog)):
        for name in calls_of(face) - IN_SYNC_SLOTS:
            made = inspect.unwrap(getattr(face, name))
            assert made is getattr(other, "aclose" if name == "close" else name)


def test_no_call_of_a_buffer_only_passes_on_what_the_catalog_and_slots_have() -> None:
    assert not calls_of(RolloutBuffer) & calls_of(Catalog)
    assert calls_of(RolloutBuffer) & calls_of(Slots) == {"admit"}


def test_a_trainer_without_a_loop_goes_on_where_its_list_ends(redis: ground.Client) -> None:
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=2)).sync
    try:
        for name in ("a", "b"):
            buffer.write_many([item(name, f"{name}{reward}", reward) for reward in (0, 1)])
        buffer.wait_for(2, seconds=0)
        assert (buffer.available(), buffer.catalog.rewards()[-2]) == (2, 2)
        batch = buffer.take()
        assert batch is not None
        buffer.ack(batch)
        assert buffer.catalog.finished_rounds() == {"a": 1, "b": 1}
        assert buffer.catalog.resume(["a"]) == 1  # the other one is delivered again
        again = buffer.take()
        assert again is not None
        assert again.finished_groups == ["b"]
        assert (buffer.unreported(), buffer.catalog.quarantined(1)) == ([], [])
        buffer.release(again)
        with pytest.raises(LeaseLost):
            buffer.ack(again)
    finally:
        buffer.close()


def test_a_task_has_the_settings_of_the_process_that_begins_it(
    redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BATCH_LEASE", "77")
    monkeypatch.setenv("PENSTOCK_MAX_BUFFER_BYTES", "1000000")
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=2, retain=5)).sync
    try:
        found = buffer.config()
        assert (found.lease, found.max_bytes, found.retain) == (77, 1_000_000, 5)
        buffer.configure(TaskConfig(group_size=4))
        assert (buffer.config().lease, buffer.config().retain) == (77, 600)
    finally:
        buffer.close()


def test_a_buffer_is_of_the_run_that_its_process_names(
    redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_RUN", "second")
    assert RolloutBuffer(redis, "math").run == "second"
    assert RolloutBuffer(redis, "math", run="first").run == "first"
