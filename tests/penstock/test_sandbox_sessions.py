"""`penstock sandbox ls --here` and `shell`: what lives on this machine, and a terminal in it."""

import asyncio
import json
import os

import pytest

from jail.sessions import CommandRequest, LocalSessions, SessionRequest
from jail.sessions.settings import SessionSettings
from penstock.sessions.command import _hear
from tests.harness import commands
from tests.harness.servers import until
from tests.harness.terminal import Terminal


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    clean = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    folder = tmp_path_factory.mktemp("machine") / "sandboxes"
    return clean | {"PENSTOCK_LOCAL_SANDBOXES": str(folder), "PENSTOCK_SESSION_HUB_IDLE": "1"}


@pytest.fixture
def sessions(env):
    settings = SessionSettings(
        local_sandboxes=env["PENSTOCK_LOCAL_SANDBOXES"], session_hub_idle=1.0
    )
    return LocalSessions(sessions=settings)


@pytest.fixture
async def session(sessions):
    found = await sessions.open(SessionRequest(name="box-1", tags={"e2b.template": "base"}))
    yield found
    await found.end()


async def said(env, *words: str) -> str:
    ran = await asyncio.to_thread(commands.run, ["sandbox", *words], env=env)
    return ran.stdout + ran.stderr


def shell(env, *words: str, **size: int) -> Terminal:
    return Terminal([commands.PENSTOCK, "sandbox", "shell", *words], env, **size)


async def test_what_lives_here_is_listed_with_what_it_uses(env, session):
    process = await session.start(CommandRequest(["sleep", "600"], kept=True))
    await process.close()
    shown = (await said(env, "ls", "--here")).splitlines()
    assert shown[0].split()[:4] == ["sandbox", "image", "age", "memory"]
    assert shown[1].startswith("box-1")
    assert "sleep 600" in shown[1]
    assert len(shown[1]) <= 80
    (row,) = json.loads(await said(env, "ls", "--here", "--json"))
    assert (row["name"], row["image"], row["last_command"]) == ("box-1", "base", "sleep 600")
    assert row["memory"] > 0
    assert row["processes"] >= 1
    assert row["machine"]


async def test_a_shell_has_a_terminal_whose_size_follows_the_window(env, session):
    def use() -> int:
        with shell(env, "box-1") as terminal:
            terminal.until("$ ")
            terminal.press(b"stty size; echo $TERM\r")
            terminal.until("24 80")
            terminal.until("xterm-256color\r")
            terminal.resize(40, 100)
            follows = (
                b"until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo fol''lowed\r"
            )
            terminal.press(follows)
            terminal.until("followed")
            terminal.press(b"exit 7\r")
            return terminal.ends()

    assert await asyncio.to_thread(use) == 7


async def test_a_terminal_without_a_size_has_a_usual_one_inside(env, session):
    def use() -> int:
        with shell(env, "box-1", "stty", "size", rows=0, cols=0) as terminal:
            terminal.until("24 80")
            return terminal.ends()

    assert await asyncio.to_thread(use) == 0


async def test_a_terminal_that_hung_up_is_heard_no_more():
    loop, typed = asyncio.get_running_loop(), asyncio.Queue()
    ours, theirs = os.openpty()
    loop.add_reader(theirs, _hear, loop, theirs, typed)
    os.close(ours)
    assert await asyncio.wait_for(typed.get(), 100) == b""
    assert not loop.remove_reader(theirs)
    os.close(theirs)


async def test_ctrl_c_goes_inside(env, session):
    def use() -> int:
        with shell(env, "box-1") as terminal:
            terminal.until("$ ")
            # Its own process says so: the foreground is its, and no more the shell's.
            terminal.press(b"sh -c \"echo rea''dy; exec sleep 600\"\r")
            terminal.until("ready")
            terminal.press(Terminal.CTRL_C)
            until(lambda: "$ " in terminal.said.rpartition("^C")[2], "the next prompt")
            terminal.press(b"echo code $?\r")
            terminal.until("code 130")
            terminal.press(b"exit\r")
            return terminal.ends()

    assert await asyncio.to_thread(use) == 0


async def test_a_shell_ends_with_its_sandbox(env, sessions):
    await sessions.open(SessionRequest(name="box-2"))

    def begun() -> Terminal:
        terminal = shell(env, "box-2", "sh", "-c", "echo begun; sleep 600")
        terminal.until("begun")
        return terminal

    with await asyncio.to_thread(begun) as terminal:
        assert await sessions.end("box-2")
        assert await asyncio.to_thread(terminal.ends) == 1
        assert "has ended" in terminal.said


async def test_an_unknown_sandbox_and_a_missing_terminal_are_refused(env):
    with shell(env, "box-3") as terminal:
        assert await asyncio.to_thread(terminal.ends) == 1
        assert "box-3" in terminal.said
    assert "a terminal is needed" in await said(env, "shell", "box-3")
