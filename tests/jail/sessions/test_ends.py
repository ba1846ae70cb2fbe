"""How sessions end: by word, by time, with who opened them; by real kills of all that keeps them.

What must not be left: processes, links, cgroups, folders.
"""

import asyncio
import json
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from jail.errors import SandboxUnavailable
from jail.images.settings import ImageSettings
from jail.limits import Limits
from jail.sessions import (
    CommandRequest,
    Exit,
    LocalSessions,
    SessionExists,
    SessionGone,
    SessionRefused,
    SessionRequest,
    TooManySessions,
)
from jail.sessions.hub.hub import Hub
from jail.sessions.hub.hub_session import KeptSession
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings
from tests.harness.remains import processes_in

from .conftest import (
    ROOT,
    WITHIN,
    below,
    children_of,
    dead,
    hub_in,
    sessions_in,
    started_with_few_files,
    until,
    wait_for,
)

pytestmark = pytest.mark.timeout(300)


def cgroups_of(folder: Path) -> list[Path]:
    """Those of the hub that is there, and their mark."""
    (about,) = folder.glob(".hub-*.cgroups")
    marks = [Path(mark) for mark in json.loads(about.read_text())]
    return [group for mark in marks for group in mark.parent.glob(f"{mark.name}*")]


def links_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_symlink()]


def kill(process: int) -> None:
    ended = os.pidfd_open(process)
    os.kill(process, signal.SIGKILL)
    wait_for(ended)
    os.close(ended)


BUSY = CommandRequest(
    ["sh", "-c", "(setsid sleep 600 || sleep 600) & echo up; exec sleep 600"], kept=True
)


async def busy(sessions: LocalSessions, **request) -> tuple:
    """A session with a command and a process in its background."""
    session = await sessions.open(SessionRequest(**request))
    process = await session.start(BUSY)
    await anext(process.events())
    return session, process


async def test_an_end_leaves_nothing(in_namespaces):
    session, process = await busy(in_namespaces)
    hub = hub_in(in_namespaces.folder)
    before = below(hub)
    await session.end()
    assert (await process.wait()).why == "session_ended"
    with pytest.raises(SessionGone, match="Open a new one"):
        await session.info()
    await session.end()
    assert not await in_namespaces.end(session.name)
    assert session.name not in links_in(in_namespaces.folder)
    gone = set(before) - set(below(hub))
    await until(dead, list(gone))
    await process.close()


async def test_neither_an_exit_nor_an_end_waits_for_a_caller_that_reads_no_more(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    floods = [await session.start(CommandRequest(["yes"])) for _ in range(2)]
    heard = await session.attach(floods[0].pid)
    await session.signal(heard.pid, signal.SIGKILL)
    async with asyncio.timeout(WITHIN):
        assert (await heard.wait()).signal == signal.SIGKILL
        await session.end()
    for flood, why in zip(floods, ("", "session_ended"), strict=True):
        ends = [event.why async for event in flood.events() if isinstance(event, Exit)]
        assert ends == [why], "its end is said once"
        await flood.close()
    await heard.close()


@pytest.mark.parametrize("limit", [{"ttl": 0.3}, {"idle": 0.3}])
async def test_a_time_limit_ends_it_and_all_in_it(in_namespaces, limit):
    session = await in_namespaces.open(SessionRequest(**limit))
    name, folder = session.name, in_namespaces.folder
    await until(lambda: name not in links_in(folder))
    with pytest.raises(SessionGone):
        await session.run(CommandRequest(["true"]))


async def test_a_session_that_is_used_does_not_idle(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    info = await session.keep(ttl=100, idle=90)
    assert (info.idle, round(info.ends - info.last_used)) == (90, 100)
    process = await session.start(CommandRequest(["sleep", "1"]))
    await session.keep(idle=0.2)
    assert (await process.wait()).code == 0
    await process.close()
    await session.end()


async def test_a_caller_that_waited_for_room_and_has_gone_uses_it_no_more(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    process = await session.start(CommandRequest(["sleep", "600"], stdin=True, kept=True))
    await process.close()
    writing = asyncio.create_task(session.write_stdin(process.pid, bytes(4 << 20)))
    for _ in range(20):  # answers that come after those to what there is room for
        await session.info()
    writing.cancel()
    await session.keep(idle=0.2)
    await until(lambda: session.name not in links_in(in_namespaces.folder))


@pytest.mark.parametrize(
    "asked",
    [
        {"ttl": 0}, {"ttl": -1}, {"ttl": 366 * 86400.0}, {"idle": 0}, {"name": "../x"},
        {"name": "\u00e9" * 128}, {"disk_mb": math.nan},
        {"memory_mb": 1 << 20}, {"memory_mb": 0}, {"processes": -1}, {"disk_mb": 0},
        {"tags": {str(n): "" for n in range(99)}},
    ],
)  # fmt: skip
async def test_what_can_never_be_is_refused_and_leaves_nothing(in_namespaces, asked):
    before = links_in(in_namespaces.folder) if in_namespaces.folder.exists() else []
    (name,) = asked
    with pytest.raises(SessionRefused, match=name.partition("_")[0]):
        await in_namespaces.open(SessionRequest(**asked))
    assert links_in(in_namespaces.folder) == before


async def test_a_name_is_given_once(in_namespaces):
    session = await in_namespaces.open(SessionRequest("mine", tags={"of": "me"}))
    with pytest.raises(SessionExists, match="mine"):
        await in_namespaces.open(SessionRequest("mine"))
    assert [info.name async for info in in_namespaces.list({"of": "me"})] == ["mine"]
    assert [info.name async for info in in_namespaces.list({"of": "you"})] == []
    assert (await (await in_namespaces.get("mine")).info()).tags == {"of": "me"}
    await session.end()
    await (await in_namespaces.open(SessionRequest("mine"))).end()


async def test_a_machine_keeps_so_many_and_no_more(folder):
    sessions = sessions_in(folder, session_most=2)
    first, _ = [await sessions.open(SessionRequest()) for _ in range(2)]
    with pytest.raises(TooManySessions, match="keeps 2 sessions"):
        await sessions.open(SessionRequest())
    await first.end()
    await sessions.open(SessionRequest())


async def test_many_who_start_a_hub_start_one(folder):
    opened = await asyncio.gather(*(sessions_in(folder).open(SessionRequest()) for _ in range(8)))
    assert len(processes_in(folder)) == 1
    await asyncio.gather(*(session.end() for session in opened))


async def test_a_hub_without_a_session_ends_and_the_next_caller_starts_another(folder):
    sessions = sessions_in(folder, session_hub_idle=0.2)
    await (await sessions.open(SessionRequest())).end()
    await sessions.open(SessionRequest(idle=0.2, tied=True))
    await until(lambda: not processes_in(folder))
    await sessions.close()
    assert {path.suffix for path in folder.iterdir()} <= {".lock"}
    await (await sessions.open(SessionRequest())).end()


async def test_a_hub_begins_no_session_once_it_has_decided_to_end(folder):
    idle = SessionSettings(local_sandboxes=str(folder), session_hub_idle=0.01)
    hub = Hub(folder, ".hub-1.sock", SandboxSettings(), idle, ImageSettings())
    hub._started = asyncio.create_task(asyncio.sleep(0))
    await hub._until_deserted()
    with pytest.raises(SessionGone, match="ask again"):
        await hub._sessions.open(asdict(SessionRequest()))


async def test_an_unfit_hub_ends_though_it_is_asked_all_the_time(folder):
    unfit = LocalSessions(
        SandboxSettings(sandbox_python="/bin/true"),
        SessionSettings(local_sandboxes=str(folder), session_hub_idle=1),
    )
    hubs: set[int] = set()
    async with asyncio.timeout(WITHIN):
        while len(hubs) < 2:
            with pytest.raises(SandboxUnavailable, match="/bin/true"):
                await unfit.open(SessionRequest())
            hubs.update(processes_in(folder))
    await until(lambda: not processes_in(folder))


async def test_where_few_files_may_be_open_each_process_may_have_fewer(folder):
    assert await started_with_few_files(folder, 1100) == ""
    session = await sessions_in(folder).get("first")
    assert (await session.run(CommandRequest(["sh", "-c", "ulimit -n"]))).stdout == b"512\n"


async def test_too_few_open_files_are_said_with_the_remedy(folder):
    said = await started_with_few_files(folder, 400)
    assert re.match("SandboxUnavailable .* 512 .* this process 400.*`ulimit -n 4096`", said)


CLIENT = """
import asyncio, sys
from pathlib import Path
from tests.jail.sessions.conftest import sessions_in
from jail.sessions import CommandRequest, SessionRequest
async def main():
    sessions = sessions_in(Path(sys.argv[1]))
    tied = await sessions.open(SessionRequest("tied", tied=True))
    free = await sessions.open(SessionRequest("free"))
    for session in (tied, free):
        command = ["sh", "-c", "sleep 601 & echo up; exec sleep 602"]
        process = await session.start(CommandRequest(command, kept=session is tied))
        await anext(process.events())
    print("up", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


async def test_a_killed_client_ends_what_is_tied_to_it_and_no_more(folder):
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(folder), stdout=subprocess.PIPE, cwd=ROOT
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"up\n"
    client.kill()
    await client.wait()
    await until(lambda: links_in(folder) == ["free"])
    session = await sessions_in(folder).get("free")
    async with asyncio.timeout(WITHIN):
        while await session.processes():  # noqa: ASYNC110 - nothing says it to a third party
            await asyncio.sleep(0.02)
    assert (await session.run(CommandRequest(["echo", "well"]))).stdout == b"well\n"
    await session.end()


async def test_a_killed_hub_takes_all_with_it_and_the_next_clears_up(folder):
    sessions = sessions_in(folder)
    session, process = await busy(sessions, name="mine")
    hub, made = hub_in(folder), cgroups_of(folder)
    everyone = below(hub)
    assert len(everyone) > 3
    kill(hub)
    await until(dead, everyone)
    assert [event async for event in process.events()] == []
    await process.close()
    with pytest.raises(SessionGone):
        await session.run(CommandRequest(["true"]))
    assert [info async for info in sessions.list()] == []
    assert not await sessions.end("mine"), "which is how a reaper ends it"
    assert links_in(folder) == []
    await until(lambda: not any(group.exists() for group in made))
    again = await sessions.open(SessionRequest("mine"))
    assert (await again.run(CommandRequest(["echo", "well"]))).stdout == b"well\n"
    await again.end()


async def test_a_killed_fork_server_ends_its_sessions_and_the_hub_starts_another(folder):
    sessions = sessions_in(folder)
    session, process = await busy(sessions)
    (server,) = children_of(hub_in(folder))
    everyone = below(server)
    kill(server)
    await until(dead, everyone)
    ends = [event async for event in process.events()]
    assert isinstance(ends[-1], Exit)
    assert ends[-1].why == "session_ended"
    await until(lambda: links_in(folder) == [])
    with pytest.raises(SessionGone):
        await session.info()
    again = await sessions.open(SessionRequest())
    assert (await again.run(CommandRequest(["echo", "well"]))).stdout == b"well\n"
    await again.end()
    await process.close()


async def test_a_killed_init_ends_its_session_alone(folder):
    sessions = sessions_in(folder)
    other = await sessions.open(SessionRequest())
    (server,) = children_of(hub_in(folder))
    session, process = await busy(sessions)
    (init,) = [pid for pid in children_of(server) if "sleep" in words_below(pid)]
    kill(init)
    ends = [event async for event in process.events()]
    assert [end.why for end in ends if isinstance(end, Exit)] == ["session_ended"]
    with pytest.raises(SessionGone):
        await session.info()
    assert (await other.run(CommandRequest(["echo", "well"]))).stdout == b"well\n"
    await other.end()
    await process.close()


def words_below(process: int) -> str:
    words = ""
    for pid in below(process):
        try:
            words += Path(f"/proc/{pid}/cmdline").read_text()
        except OSError:
            continue
    return words


async def many(folder: Path, count: int) -> None:
    sessions = sessions_in(folder, session_hub_idle=30)
    opened = await asyncio.gather(*(sessions.open(SessionRequest()) for _ in range(count)))
    ran = await asyncio.gather(*(s.run(CommandRequest(["echo", s.name])) for s in opened))
    assert [each.stdout for each in ran] == [f"{s.name}\n".encode() for s in opened]
    assert len([info async for info in sessions.list()]) == count
    hub = hub_in(folder)
    everyone = below(hub)
    await asyncio.gather(*(session.end() for session in opened))
    assert links_in(folder) == []
    await until(lambda: len(below(hub)) < 10)
    assert len(everyone) >= count


async def test_many_callers_of_a_hub_that_stands_still_are_all_answered(folder):
    session = await sessions_in(folder, session_hub_idle=30).open(SessionRequest())
    hub = hub_in(folder)
    os.kill(hub, signal.SIGSTOP)
    calls = [asyncio.create_task(session.info()) for _ in range(300)]
    for _ in range(10):  # turns in which all of them connect
        await asyncio.sleep(0)
    os.kill(hub, signal.SIGCONT)
    assert len(await asyncio.gather(*calls)) == len(calls)
    await session.end()


async def test_fifty_at_once(folder):
    await many(folder, 50)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_three_hundred_alive(folder):
    await many(folder, 300)


async def test_a_session_whose_time_has_run_out_cannot_be_kept_while_it_ends():
    kept = KeptSession({"name": "mine", "ttl": 0.0, "idle": None}, "ns", Limits(), None)
    kept._ending = asyncio.ensure_future(kept.over.wait())  # its jail takes its time
    kept._look_at_the_clock()
    with pytest.raises(SessionGone, match="mine is gone: its time to live passed"):
        kept.keep(60.0, None)
    kept.over.set()
    await kept._timed_out
    kept._line.close()
