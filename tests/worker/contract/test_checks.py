"""A check that could not fail would say nothing: each meets a sandbox that breaks its promise."""

import asyncio
from typing import Any

import pytest

from tests.worker.contract import faulty_sandboxes
from tests.worker.contract.faulty_providers import FAULTY_PROVIDERS
from tests.worker.contract.faulty_sandboxes import FAULTY_SANDBOXES, Honest
from tests.worker.lifecycle.cloud import CloudThread
from worker.contract import (
    Check,
    ContractBroken,
    dead_sandbox_contract,
    provider_contract,
    sandbox_contract,
)
from worker.contract import check as checking

ONE_SHOT = [*sandbox_contract(), dead_sandbox_contract()[0]]


@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_a_sandbox_that_keeps_its_promises_passes(check: Check[Any]) -> None:
    check.run(Honest)


@pytest.mark.parametrize("check", ONE_SHOT, ids=str)
def test_a_sandbox_that_breaks_one_is_found(check: Check[Any]) -> None:
    with pytest.raises(ContractBroken, match=f"^{check.name}: "):
        check.run(FAULTY_SANDBOXES[check.name])


@pytest.mark.parametrize("check", provider_contract(), ids=str)
async def test_a_provider_that_breaks_one_is_found(
    check: Check[Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CloudThread(tmp_path) as cloud:
        monkeypatch.setenv("TEST_CLOUD", cloud.address)
        monkeypatch.setattr(checking, "WITHIN", 3.0)
        with pytest.raises(ContractBroken, match=f"^{check.name}: "):
            await check(lambda: FAULTY_PROVIDERS[check.name](cloud.address))


def test_each_fault_has_its_check() -> None:
    assert set(FAULTY_SANDBOXES) == {check.name for check in ONE_SHOT}
    assert set(FAULTY_PROVIDERS) == {check.name for check in provider_contract()}


def test_what_was_found_and_why_it_matters_are_in_the_error() -> None:
    (check,) = [c for c in sandbox_contract() if c.name == "a_traceback_reaches_the_caller"]
    with pytest.raises(ContractBroken) as broken:
        check.run(FAULTY_SANDBOXES[check.name])
    assert str(broken.value) == (
        "a_traceback_reaches_the_caller: stderr is ''. A model corrects its program from what "
        "stderr says."
    )


def test_an_exception_is_a_check_that_must_fail() -> None:
    name = "a_traceback_reaches_the_caller"
    reason = "the service joins stderr and stdout"
    (check,) = [c for c in sandbox_contract({name: reason}) if c.name == name]
    check.run(FAULTY_SANDBOXES[name])
    with pytest.raises(ContractBroken, match="the check passes; remove it from exceptions"):
        check.run(Honest)


@pytest.mark.parametrize(
    ("exceptions", "said"),
    [({"nothing": "x"}, "no check is called 'nothing'"), ({"it_says_what_it_is": " "}, "a reason")],
)
def test_an_exception_names_a_check_and_gives_a_reason(exceptions: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sandbox_contract(exceptions)


def test_a_sandbox_that_hangs_ends_its_check_and_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "WITHIN", 0.05)
    hangs = faulty_sandboxes.Hangs()
    with pytest.raises(ContractBroken, match=r"no end within 0\.05 s"):
        asyncio.run(sandbox_contract()[1](lambda: hangs))
    assert hangs.closed == 1
