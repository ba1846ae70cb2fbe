"""Every provider of session sandboxes that we have keeps the contract that users run on theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.lifecycle.cloud import CloudProvider, CloudThread
from tests.worker.lifecycle.conftest import LEAVES_OPEN, at_landlock
from worker.contract import Check, provider_contract
from worker.lifecycle import Provider
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.local.provider import FOLDER


@pytest.fixture(params=["ns", "landlock"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local sandboxes in a folder of this test's own, at each level of isolation."""
    if request.param == "landlock":
        at_landlock(monkeypatch)
    monkeypatch.setenv(FOLDER, str(tmp_path / "boxes"))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudThread]:
    with (
        CloudThread(tmp_path_factory.mktemp("cloud")) as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("TEST_CLOUD", cloud.address)
        yield cloud


@pytest.mark.usefixtures("folder")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("check", provider_contract(), ids=str)
def test_the_local_provider(check: Check[Provider]) -> None:
    check.run(LocalProvider)


@pytest.mark.parametrize("check", provider_contract(), ids=str)
def test_the_cloud_of_our_tests(check: Check[Provider], cloud: CloudThread) -> None:
    check.run(lambda: CloudProvider(cloud.address))


@LEAVES_OPEN
@pytest.mark.timeout(180)
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
