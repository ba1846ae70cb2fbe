"""Modal's own client, unmodified, under our lifecycle, against a stand-in of Modal's servers."""

import os
import runpy
from pathlib import Path

import pytest

from tests.worker.lifecycle.conftest import (
    LEAVES_OPEN,
    forget_modals_client,
    gate_of,
    quick,
    until,
)
from worker.lifecycle import Command, Kind, SandboxLifecycle, SandboxSpec, StartFailed, StartRefused
from worker.lifecycle.clouds import shell
from worker.lifecycle.reaper.reaper import Reaper

pytest.importorskip("modal", reason="penstock-rl[modal] is not installed")

pytestmark = LEAVES_OPEN


@pytest.fixture
def life(real_redis, modal_provider):
    life = SandboxLifecycle(
        real_redis, modal_provider, run="test", settings=quick(startup_timeout=30.0)
    )
    yield life
    life.registry.close()


async def test_a_sandbox_has_its_name_and_tags_from_its_creation_on(life, modal_cloud):
    async with life.open() as sandbox:
        (box,) = modal_cloud.living()
        assert box.name == sandbox.name
        tags = {tag.tag_name: tag.tag_value for tag in box.tags}
        assert tags["penstock-run"] == "test"
        assert tags["penstock-fleet"] == life.registry.look().facts["fleet"]
        assert (await sandbox.exec(["echo", "on modal"])).stdout == b"on modal\n"
    assert modal_cloud.living() == []
    assert (await gate_of(life).status()).in_flight == 0


async def test_a_sandbox_in_use_has_one_connection_and_gives_it_back_at_its_end(life, modal_cloud):
    """docs/guide/two-thousand-sandboxes.md says what `ulimit -n` follows from it."""
    async with life.open() as first:
        await first.exec(["true"])
        before = connections()
        async with life.open() as second, life.open() as third:
            for sandbox in (first, second, third):
                await sandbox.exec(["true"])
            assert connections() == before + 2
        await until(lambda: connections() == before)
    await until(lambda: connections() == before - 1)


def connections() -> int:
    """How many are open to the stand-in, on the client's side."""
    port = f"{int(os.environ['MODAL_SERVER_URL'].rpartition(':')[2]):04X}"
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    established = [row for row in rows if row[3] == "01"]
    return sum(row[2].endswith(f":{port}") for row in established)


async def test_of_what_a_command_prints_no_more_is_kept_than_an_output_may_have(life, monkeypatch):
    monkeypatch.setattr(shell, "MOST", 1000)
    async with life.open() as sandbox:
        flood = await sandbox.exec(["sh", "-c", "head -c 100000 /dev/zero"])
    assert (flood.exit_code, len(flood.stdout)) == (0, 1000)


async def test_throttling_that_does_not_end_fails_the_attempt(life, modal_cloud):
    """Left alone, Modal's client asks again for as long as it is told to: for ever."""
    modal_cloud.throttled_for = 0.2
    with pytest.raises(StartFailed, match="creation rate limit"):
        await life.start(attempts=1)
    assert modal_cloud.creates > 1
    assert modal_cloud.living() == []
    assert life.registry.look().count == 0
    assert (await gate_of(life).status()).in_flight == 0


def test_the_bound_of_throttling_is_there_where_no_operator_has_set_one(monkeypatch):
    from modal.config import config

    from worker.lifecycle.modal import provider

    monkeypatch.delenv("MODAL_MAX_THROTTLE_WAIT", raising=False)
    assert config.get("max_throttle_wait") is None
    runpy.run_path(provider.__file__)  # as a process that first imports it
    assert config.get("max_throttle_wait") == 30


async def test_throttling_that_ends_is_backed_off_from(life, modal_cloud):
    from grpclib import GRPCError, Status

    modal_cloud.refuse_creates = [GRPCError(Status.RESOURCE_EXHAUSTED, "5/s exceeded")]
    life.provider.classify = lambda problem: modal_provider_verdict(life, problem)
    async with life.open():
        assert modal_cloud.creates == 2


def modal_provider_verdict(life, problem):
    from dataclasses import replace

    verdict = type(life.provider).classify(life.provider, problem)
    assert verdict.kind is Kind.THROTTLED
    return replace(verdict, retry_after=0.0)


async def test_one_that_was_made_though_the_answer_was_a_refusal_is_found_and_ended(
    life, modal_cloud
):
    """RESOURCE_EXHAUSTED is also said of an answer that is too large, and of no capacity."""
    from grpclib import GRPCError, Status

    modal_cloud.lost_answers = [GRPCError(Status.RESOURCE_EXHAUSTED, "message is too large")]
    with pytest.raises(StartFailed, match="too large"):
        await life.start(attempts=1)
    assert (modal_cloud.creates, modal_cloud.living()) == (1, [])
    assert life.registry.look().count == 0


async def test_what_is_remembered_of_sandboxes_is_bounded(life, modal_cloud, monkeypatch):
    from worker.lifecycle.modal import provider as module

    monkeypatch.setattr("worker.lifecycle.clouds.cloud._CONNECTED", 2)
    monkeypatch.setattr(module, "_KNOWN", 1)
    provider = module.ModalProvider()
    refs = [
        await provider.create(SandboxSpec(), name=f"box-{n}", tags={"t": "x"}, ttl=60)
        for n in range(3)
    ]
    assert len(provider._opened) == 2
    for ref in refs:  # also that which has been given up
        assert (await provider.exec(ref, Command(["echo", "well"]))).stdout == b"well\n"
    listed = {ref.name async for ref in provider.list({"t": "x"})}
    assert listed == {"box-0", "box-1", "box-2"}
    assert len(provider._names) == 1
    await provider.close()


async def test_a_command_outlasts_that_its_sandbox_gives_way_to_another(
    modal_cloud, monkeypatch, modal_provider
):
    from worker.lifecycle.modal import provider as module

    monkeypatch.setattr("worker.lifecycle.clouds.cloud._CONNECTED", 1)
    provider = module.ModalProvider()
    ref = await provider.create(SandboxSpec(), name="used", tags={}, ttl=60)
    sandbox = await provider._sandbox(ref.id)  # as a call does, just before it uses it
    running = await sandbox.exec.aio("cat", text=False)
    await provider.create(SandboxSpec(), name="other", tags={}, ttl=60)
    assert ref.id not in provider._opened
    running.stdin.write(b"well")
    running.stdin.write_eof()
    await running.stdin.drain.aio()
    assert await running.wait.aio() == 0
    assert await running.stdout.read.aio() == b"well"
    assert await (await sandbox.exec.aio("true")).wait.aio() == 0
    await provider.close()


def test_what_is_in_another_app_is_reached_from_there(modal_provider):
    mine = type(modal_provider)("mine")
    assert (modal_provider.scope, mine.scope) == ("modal", "modal:mine")


async def test_an_image_that_does_not_exist_is_refused_with_modals_words(life, modal_cloud):
    with pytest.raises(StartRefused, match="was not found"):
        await life.start(SandboxSpec(image="absent"))
    assert modal_cloud.creates == 0
    assert life.registry.look().count == 0


async def test_missing_credentials_are_refused_and_the_message_says_what_to_set(
    life, modal_cloud, monkeypatch, tmp_path
):
    forget_modals_client()
    monkeypatch.delenv("MODAL_TOKEN_ID")
    monkeypatch.delenv("MODAL_TOKEN_SECRET")
    with pytest.raises(StartRefused, match="Set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
        await life.start(attempts=5)
    assert life.registry.look().counters["opened"] == 1
    assert life.registry.look().count == 0


async def test_credentials_that_modal_does_not_know_are_refused_too(life, modal_cloud, monkeypatch):
    forget_modals_client()
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong")
    with pytest.raises(StartRefused, match=r"Token validation failed.*MODAL_TOKEN_SECRET"):
        await life.start(attempts=5)
    assert life.registry.look().counters["opened"] == 1


async def test_a_reaper_ends_what_a_dead_worker_left_at_modal(life, modal_cloud, modal_provider):
    sandbox = await life.start()
    life.keeper.drop(sandbox._box)
    life.registry.condemn(sandbox.name, "", "its owner died")
    reaper = Reaper(life.target, settings=quick(), ours=modal_provider)
    await reaper.look(wait=False)
    assert modal_cloud.living() == []
    assert life.registry.look().count == 0


async def test_a_start_that_fails_for_good_says_how_often_it_was_tried(life, modal_cloud):
    from grpclib import GRPCError, Status

    modal_cloud.refuse_creates = [GRPCError(Status.FAILED_PRECONDITION, "no capacity")] * 2
    with pytest.raises(StartFailed, match="after 2 attempts"):
        await life.start()


async def test_a_file_is_read_to_its_end_however_late_it_comes(life, modal_cloud, monkeypatch):
    from worker.lifecycle.modal import provider

    monkeypatch.setattr(provider, "_LAST_WORDS", 0.01)
    async with life.open() as sandbox:
        await sandbox.write_file("a", b"whole")
        modal_cloud.outputs_late = 0.3
        assert await sandbox.read_file("a") == b"whole"
