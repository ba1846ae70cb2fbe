"""A process that asks for a session may end at any moment: then nothing of it is left."""

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import pytest_asyncio

from jail.sessions import (
    CommandRequest,
    LocalSessions,
    SessionGone,
    SessionRequest,
    SessionTrouble,
    wire,
)
from jail.sessions.call import connect
from jail.sessions.launch import hub_of
from tests.jail.sessions.conftest import (
    ROOT,
    children_of,
    hub_in,
    sessions_in,
    strange_hub,
    until,
)

pytestmark = [pytest.mark.timeout(200), pytest.mark.in_turns("sessions")]

OPENS = """
import asyncio, sys
from pathlib import Path
from tests.jail.sessions.conftest import sessions_in
from jail.sessions import SessionRequest
asyncio.run(sessions_in(Path(sys.argv[1])).open(SessionRequest(name="mine")))
"""


@contextlib.contextmanager
def halted_fork_servers(folder: Path):
    """Nothing can be opened meanwhile."""
    servers = children_of(hub_in(folder))
    for server in servers:
        os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        for server in servers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGCONT)


@pytest_asyncio.fixture
async def sessions(folder: Path) -> LocalSessions:
    """With a hub that has one session, so that it stays."""
    sessions = sessions_in(folder)
    await sessions.open(SessionRequest(name="first", ttl=600))
    return sessions


def taken(folder: Path) -> bool:
    return (folder / "mine").is_symlink()


def free(folder: Path) -> bool:
    return not taken(folder)


async def names(sessions: LocalSessions) -> list[str]:
    return [info.name async for info in sessions.list()]


async def test_nothing_is_left_of_an_opening_whose_process_is_killed(sessions, folder):
    with halted_fork_servers(folder):
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENS, str(folder), cwd=ROOT
        )
        await until(taken, folder)
        client.kill()
        await client.wait()
    await until(free, folder)
    assert await names(sessions) == ["first"]


async def test_nothing_is_left_of_an_opening_that_is_cancelled(sessions, folder):
    with halted_fork_servers(folder):
        opening = asyncio.ensure_future(sessions.open(SessionRequest(name="mine")))
        await until(taken, folder)
        opening.cancel()
        await asyncio.wait([opening])
    await until(free, folder)
    assert await names(sessions) == ["first"]


async def test_a_session_is_ended_by_its_name_while_it_is_opened(sessions, folder):
    with halted_fork_servers(folder):
        opening = asyncio.ensure_future(sessions.open(SessionRequest(name="mine")))
        await until(taken, folder)
        reader, writer = await ask(folder, op="end", name="mine")
        for _ in range(3):  # what comes later is answered, so the hub knows of it
            assert await names(sessions) == ["first"]
    said, _ = await wire.receive(reader)
    writer.close()
    assert said == {}
    with pytest.raises(SessionTrouble, match="ended by its name"):
        await opening
    assert free(folder)


async def ask(folder: Path, **call) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    hub = hub_of(folder, "first")
    assert hub
    reader, writer = await connect(folder, hub)
    await wire.send(writer, call)
    return reader, writer


@pytest.mark.parametrize("call", [{"op": "open"}, {"op": "fork", "name": "first"}])
async def test_a_session_that_nobody_came_to_know_of_is_ended(sessions, folder, call):
    about = asdict(SessionRequest(name="mine"))
    reader, writer = await ask(folder, session=about, **call)
    said, _ = await wire.receive(reader)
    assert said["session"]["name"] == "mine"
    writer.close()
    await until(free, folder)

    reader, writer = await ask(folder, session=about, **call)
    await wire.receive(reader)
    writer.write(wire.KNOWN)
    writer.close()
    assert await (await sessions.get("mine")).info()
    assert sorted(await names(sessions)) == ["first", "mine"]


async def test_a_hub_that_lives_and_lists_nothing_is_not_taken_for_dead(sessions, folder):
    with strange_hub(folder), pytest.raises(SessionTrouble, match="lives, but did not answer"):
        await names(sessions)
    assert await names(sessions) == ["first"]
    with pytest.raises(SessionGone):
        await sessions.get("absent")


async def test_a_session_whose_hub_lives_and_hangs_up_is_not_taken_for_gone(sessions, folder):
    (folder / "mine").symlink_to(".hub-strange.sock")
    command = CommandRequest(["true"])
    with strange_hub(folder):
        session = sessions.named("mine")
        with pytest.raises(SessionTrouble, match="lives, but did not answer"):
            await session.info()
        with pytest.raises(SessionTrouble, match="lives, but did not answer"):
            await session.run(command)
        with pytest.raises(SessionTrouble, match="lives, but did not answer"):
            await sessions.end("mine")
    with pytest.raises(SessionGone):
        await session.info()


async def test_nor_is_one_whose_hub_hangs_up_during_a_command(sessions, folder):
    (folder / "mine").symlink_to(".hub-strange.sock")
    command = CommandRequest(["true"])
    shown = {"pid": 7, "tag": "", "command": asdict(command), "started": 0.0, "exit": None}
    with strange_hub(folder, wire.packed({"process": shown})):
        session = sessions.named("mine")
        with pytest.raises(SessionTrouble, match="lives, but did not answer"):
            await session.run(command)
        process = await session.start(command)
        with pytest.raises(SessionTrouble, match="lives, but did not answer"):
            await process.wait()
        await process.close()
    with pytest.raises(SessionGone):
        await process.wait()
