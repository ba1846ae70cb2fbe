"""`CodeSession`: one sandbox for a rollout, ended however its host forgets it."""

import asyncio
import gc
import os
import subprocess
import sys

import pytest

from ground import SettingError
from tests.architecture.source import ROOT
from tests.harness import doomed, killing
from worker.hosts.process_lifecycle import lifecycle_here
from worker.hosts.session import CodeSession
from worker.lifecycle.provider import SandboxSpec


async def test_a_rollout_has_one_interpreter_and_its_end_leaves_nothing(boxes) -> None:
    session = CodeSession()
    assert not session.is_open
    assert (await session.run("x = 6")).text == ""
    assert (await session.run("print(x * 7)")).text == "42\n"
    assert len(await boxes.names()) == 1
    await session.end()
    await session.end()
    assert (session.is_open, session.masked, await boxes.names()) == (False, "", [])
    assert (await session.run("print(1)")).reason == "session_lost"


async def test_what_the_model_does_wrong_masks_nothing(boxes) -> None:
    session = CodeSession()
    assert "ZeroDivisionError" in (await session.run("1 / 0")).text
    assert "lone surrogate" in (await session.run("x = '\ud800'")).text
    assert (await session.run("print(2)")).text == "2\n"
    assert session.masked == ""
    await session.end()


async def test_a_program_past_its_time_limit_masks_nothing(boxes) -> None:
    session = CodeSession(timeout=1.0)
    assert "time limit" in (await session.run("while True: pass")).text
    assert session.masked == ""
    await session.end()


@pytest.mark.parametrize(
    "hostile",
    ["import os; os.chmod('.', 0)", "open('full', 'wb').write(bytes(1 << 29))"],
    ids=["locks", "fills"],
)
async def test_a_model_cannot_mask_what_comes_after(boxes, hostile: str) -> None:
    session = CodeSession(spec=SandboxSpec(options={"disk_mb": 16}))
    await session.run(hostile)
    answer = await session.run("print(1)")
    assert ("[not run, since" in answer.text, answer.kind, session.masked) == (True, "user", "")
    await session.end()


async def test_an_end_that_is_cancelled_is_not_forgotten(boxes) -> None:
    session = CodeSession()
    await session.run("1")
    ending = asyncio.ensure_future(session.end())
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await boxes.ended()


async def test_a_sandbox_that_dies_masks_the_rollout(boxes) -> None:
    session = CodeSession()
    await session.run("x = 1")
    await boxes.kill()
    answer = await session.run("print(x)")
    assert "for no fault of its own" in answer.text
    assert (answer.masked, session.masked) == (True, "sandbox_lost")
    assert (await session.run("print(1)")).reason == "sandbox_lost"
    await session.end()
    assert await boxes.names() == []


async def test_many_at_once_from_several_loops(boxes) -> None:
    session = CodeSession()
    answers = await asyncio.gather(
        *(session.run(f"print({n})") for n in range(3)),
        asyncio.to_thread(session.run_sync, "print(3)"),
    )
    assert sorted(answer.text for answer in answers) == ["0\n", "1\n", "2\n", "3\n"]
    assert len(await boxes.names()) == 1
    await session.end()


async def test_one_that_is_forgotten_ends_and_a_forks_copy_ends_nothing(boxes) -> None:
    session = CodeSession()
    await session.run("1")
    if (child := os.fork()) == 0:
        del session
        gc.collect()
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    assert (await session.run("print(1)")).text == "1\n"
    del session
    gc.collect()
    await boxes.ended()


def opens_and_forgets() -> None:
    """A scenario: the process ends with a session open, or is killed."""
    kept.append(CodeSession())
    answer = kept[0].run_sync("print(1)")
    assert answer.text == "1\n", answer
    doomed.reached("open")


kept: list[CodeSession] = []


async def test_one_that_is_open_at_the_processs_end_is_the_reapers_at_once(boxes) -> None:
    program = f"from {__name__} import opens_and_forgets; opens_and_forgets()"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], cwd=ROOT, check=True)
    await boxes.reaped()


async def test_that_of_a_killed_process_is_the_reapers(boxes) -> None:
    ended = await asyncio.to_thread(killing.run, opens_and_forgets, at=killing.named("open"))
    assert ended.killed
    assert len(await boxes.names()) == 1
    boxes.leases_end()
    await boxes.reaped()


def test_a_language_that_session_sandboxes_do_not_run_is_refused_before_any_call() -> None:
    """Refused at a call, it would mask each rollout whose model uses the tool."""
    with pytest.raises(SettingError, match="bash and python, not cpp"):
        CodeSession(language="cpp")


def test_without_a_redis_it_says_what_to_set() -> None:
    lifecycle_here.cache_clear()
    with pytest.raises(SettingError, match="PENSTOCK_REDIS_URL"):
        CodeSession()
