"""Every provider of session sandboxes that we have keeps the contract that users run on theirs."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jail.sessions import SessionTrouble
from tests.jail.sessions.conftest import strange_hub
from tests.worker.lifecycle.cloud import CloudProvider, CloudThread
from tests.worker.lifecycle.conftest import LEAVES_OPEN, at_landlock
from worker.contract import Check, provider_contract
from worker.lifecycle import Provider
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.provider import Command, Kind, SandboxRef

# The level of isolation changes where commands run and files lie. The other checks (names, tags,
# ends, large files on the way) are made at both levels only in the long run.
AT_EACH_LEVEL = ("a_command", "commands", "files_come", "a_missing_file", "a_folder")


def at_both_levels() -> list[Any]:
    return [
        pytest.param(
            level, check, id=f"{level}-{check}",
            marks=[] if level == "ns" or check.name.startswith(AT_EACH_LEVEL) else pytest.mark.soak,
        )
        for level, check in itertools.product(["ns", "landlock"], provider_contract())
    ]  # fmt: skip


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudThread]:
    with (
        CloudThread(tmp_path_factory.mktemp("cloud")) as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TEST_CLOUD", cloud.address)
        yield cloud


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all checks, so that the hub of a level serves them one after the other."""
    return tmp_path_factory.mktemp("boxes")


@pytest.mark.parametrize(("level", "check"), at_both_levels())
def test_the_local_provider(
    level: str, check: Check[Provider], boxes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level == "landlock":
        at_landlock(monkeypatch)
    monkeypatch.setenv("PENSTOCK_LOCAL_SANDBOXES", str(boxes))
    check.run(LocalProvider)


@pytest.mark.parametrize("check", provider_contract(), ids=str)
def test_the_cloud_of_our_tests(check: Check[Provider], cloud: CloudThread) -> None:
    check.run(lambda: CloudProvider(cloud.address))


@LEAVES_OPEN
@pytest.mark.parametrize("check", provider_contract(), ids=str)
async def test_modal_by_its_stand_in(check: Check[Provider], modal_provider: Provider) -> None:
    await check(lambda: modal_provider)


def test_two_folders_of_one_name_on_two_hosts_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As two containers with a /tmp of their own each."""
    monkeypatch.chdir(tmp_path)
    first = LocalProvider("boxes")
    here = first.scope
    assert (here, here) == (first.scope, LocalProvider(tmp_path / "boxes").scope)
    assert LocalProvider(tmp_path / "others").scope != here
    (tmp_path / "boxes").rename(tmp_path / "elsewhere")
    assert LocalProvider("boxes").scope != here
    (tmp_path / "file").touch()
    nowhere = LocalProvider(tmp_path / "file")
    assert nowhere.scope.startswith("local@"), "that it cannot be used is said by `create`"


async def test_a_new_folder_lists_no_sandboxes(tmp_path: Path) -> None:
    assert [ref async for ref in LocalProvider(tmp_path / "boxes").list({})] == []


async def test_a_sandbox_whose_hub_lives_and_hangs_up_is_neither_lost_nor_ended(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").symlink_to(".hub-strange.sock")
    provider, ref = LocalProvider(tmp_path), SandboxRef("mine", "mine")
    with strange_hub(tmp_path):
        with pytest.raises(SessionTrouble) as problem:
            await provider.exec(ref, Command(["true"], timeout=60))
        assert provider.classify(problem.value).kind is Kind.RETRY
        with pytest.raises(SessionTrouble):
            await provider.terminate(ref.id)
    await provider.terminate(ref.id)
    assert not (tmp_path / "mine").is_symlink()
