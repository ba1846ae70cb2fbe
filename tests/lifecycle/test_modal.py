"""Modal's own client, unmodified, under our lifecycle, against a stand-in of Modal's servers."""

import os
import subprocess
import sys

import pytest

from tests.lifecycle.conftest import LEAVES_OPEN, forget_modals_client, gate_of, quick
from worker.lifecycle import Kind, SandboxLifecycle, SandboxSpec, StartFailed, StartRefused
from worker.lifecycle.reaper import Reaper

pytest.importorskip("modal", reason="penstock[modal] is not installed")

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


async def test_throttling_that_does_not_end_fails_the_attempt(life, modal_cloud):
    """Left alone, Modal's client asks again for as long as it is told to: for ever."""
    modal_cloud.throttled_for = 0.2
    with pytest.raises(StartFailed, match="creation rate limit"):
        await life.start(attempts=1)
    assert modal_cloud.creates > 1
    assert modal_cloud.living() == []
    assert life.registry.look().count == 0
    assert (await gate_of(life).status()).in_flight == 0


def test_the_bound_of_throttling_is_there_where_no_operator_has_set_one():
    program = (
        "import worker.lifecycle.modal.provider\n"
        "from modal.config import config\n"
        "print(config.get('max_throttle_wait'))"
    )
    clean = {k: v for k, v in os.environ.items() if k != "MODAL_MAX_THROTTLE_WAIT"}
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, env=clean, capture_output=True, check=True, text=True)
    assert said.stdout.strip() == "30"


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
    life.keeper.drop(sandbox.name, sandbox._box.take)
    life.registry.condemn(sandbox.name, "", "its owner died")
    reaper = Reaper(life.target, settings=quick(), provider=lambda name: modal_provider)
    await reaper.look(wait=False)
    assert modal_cloud.living() == []
    assert life.registry.look().count == 0


async def test_a_start_that_fails_for_good_says_how_often_it_was_tried(life, modal_cloud):
    from grpclib import GRPCError, Status

    modal_cloud.refuse_creates = [GRPCError(Status.FAILED_PRECONDITION, "no capacity")] * 2
    with pytest.raises(StartFailed, match="after 2 attempts"):
        await life.start()
