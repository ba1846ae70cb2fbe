"""The abuse that one-shot programs are tested with, in sessions: the session and others go on."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from jail.sessions import CommandRequest, LocalSessions, Process, Session, SessionRequest
from tests.jail.abuses import ABUSES, LOOK_IN, Abuse
from tests.jail.conftest import MB
from tests.jail.hidings import HIDINGS

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
LONGEST = 60.0
_TIME = 3.0  # of a command whose abuse has no end by itself
KILL_ALL = CommandRequest(["python3", "-c", "import os; os.kill(-1, 9)"], timeout=LONGEST)
# What does not resist: nothing else is promised there.
AT_NONE = ("time limit", "one large", "whole tree", "flood of output", "in the background",
           "a fork bomb", "deeper")  # fmt: skip

each_abuse = pytest.mark.parametrize("abuse", ABUSES, ids=[abuse.name for abuse in ABUSES])


async def well(session: Session) -> bool:
    ran = await session.run(CommandRequest(["echo", "well"], timeout=LONGEST))
    return ran.stdout == b"well\n"


async def held(sessions: LocalSessions, abuse: Abuse) -> None:
    limits = abuse.limits
    session = await sessions.open(
        SessionRequest(memory_mb=limits.get("memory", 256 * MB) // MB, processes=64)
    )
    other = await sessions.open(SessionRequest())
    try:
        time = min(limits.get("wall", _TIME if abuse.status != "finished" else LONGEST), LONGEST)
        command = CommandRequest(["python3", "-c", abuse.code], timeout=time)
        ran = await session.run(command, most=1 * MB)
        if abuse.status == "finished":
            assert ran.exit.code == abuse.return_code, ran
        elif abuse.name not in HIDINGS:  # of theirs the kernel may kill each child, and no parent
            assert ran.exit.code != 0, ran
        if abuse.status == "time_limit":
            assert ran.exit.why == "timeout", ran
        if abuse.stdout is not None:
            assert ran.stdout == abuse.stdout
        assert len(ran.stdout) <= 1 * MB
        assert await well(other)
        if (await session.info()).isolation == "ns":
            await session.run(KILL_ALL)
            async with asyncio.timeout(LONGEST):
                while (await session.usage()).processes:  # noqa: ASYNC110 - nothing says it
                    await asyncio.sleep(0.02)
            assert await well(session)
    finally:
        await session.end()
        await other.end()


@each_abuse
async def test_namespaces_hold_it(in_namespaces: LocalSessions, abuse: Abuse) -> None:
    await held(in_namespaces, abuse)


@each_abuse
async def test_landlock_holds_it(at_landlock: LocalSessions, abuse: Abuse) -> None:
    await held(at_landlock, abuse)


@pytest.mark.parametrize(
    "abuse",
    [pytest.param(a, id=a.name) for a in ABUSES if any(words in a.name for words in AT_NONE)],
)
async def test_without_isolation_limits_hold_what_does_not_resist(
    at_none: LocalSessions, abuse: Abuse
) -> None:
    await held(at_none, abuse)


async def test_no_program_looks_into_a_call_that_is_under_way(
    in_namespaces: LocalSessions,
) -> None:
    """A call runs the code of init. Its last words are believed, and it has lines to init."""
    session = await in_namespaces.open(SessionRequest())
    changes = session.watch(".")
    await anext(changes)
    ran = await session.run(CommandRequest(["python3", "-c", LOOK_IN], timeout=LONGEST))
    assert (ran.exit.code, ran.stdout) == (0, b"")
    await changes.aclose()
    await session.end()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL])
async def test_a_signal_to_everybody_hinders_no_later_command(
    in_namespaces: LocalSessions, number: signal.Signals
) -> None:
    session = await in_namespaces.open(SessionRequest())
    for _ in range(3):
        attack = f"import os, time; os.fork() or time.sleep(60); os.kill(-1, {int(number)})"
        ran = await session.run(CommandRequest(["python3", "-c", attack], timeout=LONGEST))
        assert ran.exit.code == 0, ran
        assert await well(session)
    await session.end()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_program_that_signals_calls_holds_none_up_and_is_named(
    in_namespaces: LocalSessions, number: signal.Signals
) -> None:
    session = await in_namespaces.open(SessionRequest())

    async def content() -> AsyncIterator[bytes]:
        yield b"the first half"
        attack = f"import os; os.kill(-1, {int(number)})"
        await session.run(CommandRequest(["python3", "-c", attack], timeout=LONGEST))
        await asyncio.Event().wait()

    with pytest.raises(InterruptedError, match="killed or stopped what was to do this"):
        await session.write("file", content())
    assert await well(session)
    await session.end()


async def test_a_limit_of_memory_is_said(in_namespaces: LocalSessions) -> None:
    """To whom an allocator does not say it."""
    session = await in_namespaces.open(SessionRequest(memory_mb=128))
    code = "import mmap\nm = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): m[at] = 1"
    ran = await session.run(CommandRequest(["python3", "-c", code], timeout=LONGEST))
    assert ran.exit.code != 0
    assert ran.exit.why == "memory_limit"
    assert await well(session)
    await session.end()


async def past_its_memory(session: Session, then: str) -> Process:
    """A command in which a child has passed the limit, and which does this at a word of input."""
    hog = f"python3 -c 'x = bytearray(1 << 30)' 2>/dev/null; echo over; read word; {then}"
    process = await session.start(CommandRequest(["sh", "-c", hog], stdin=True))
    async with asyncio.timeout(LONGEST), contextlib.aclosing(process.events()) as events:
        await anext(events)
    return process


async def test_a_limit_that_the_background_passed_is_not_said_of_a_later_command(
    in_namespaces: LocalSessions,
) -> None:
    """A `grep` that found nothing was called killed for its memory."""
    session = await in_namespaces.open(SessionRequest(memory_mb=128))
    background = await past_its_memory(session, "true")
    ran = await session.run(CommandRequest(["false"], timeout=LONGEST))
    assert (ran.exit.code, ran.exit.why) == (1, "")
    await background.close()
    await session.end()


async def test_what_ends_well_takes_no_limit_from_the_command_that_passed_it(
    in_namespaces: LocalSessions,
) -> None:
    session = await in_namespaces.open(SessionRequest(memory_mb=128))
    process = await past_its_memory(session, "exit 1")
    assert await well(session)
    await process.close_stdin()
    assert (await process.wait()).why == "memory_limit"
    await process.close()
    await session.end()


async def test_two_sessions_do_not_see_each_other(sessions: LocalSessions) -> None:
    one = await sessions.open(SessionRequest())
    two = await sessions.open(SessionRequest())
    if (await one.info()).isolation != "none":
        started = await one.start(CommandRequest(["sleep", "599"], kept=True))
        await one.write("mine", b"of one")
        path = (await one.stat("mine")).path
        look = f"ls -a . /tmp /dev/shm; cat {path}; for p in /proc/[0-9]*; do cat $p/cmdline; done"
        ran = await two.run(CommandRequest(["sh", "-c", look]))
        assert b"of one" not in ran.stdout
        assert b"599" not in ran.stdout
        killed = await two.run(CommandRequest(["kill", "-9", str(started.pid)]))
        assert killed.exit.code != 0
        assert [each.pid for each in await one.processes()] == [started.pid]
        await started.close()
    await one.end()
    await two.end()
