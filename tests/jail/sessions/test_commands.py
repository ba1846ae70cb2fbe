"""What a command of a session gets, says and leaves, at each level."""

import asyncio
import signal
from collections.abc import AsyncIterator

import pytest

from jail.sessions import (
    CommandRequest,
    Exit,
    LocalSessions,
    Output,
    Process,
    ProcessGone,
    Session,
    SessionRefused,
    SessionRequest,
    SessionTrouble,
    Terminal,
    TooManySessions,
)

from .conftest import sessions_in, started_with_few_files

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
WITHIN = 90  # seconds that nothing here takes


def sh(text: str, **given: object) -> CommandRequest:
    return CommandRequest(["sh", "-c", text], **given)  # type: ignore[arg-type]


async def until_said(process, words: bytes) -> bytes:
    """What it wrote until these words were among it."""
    said = b""
    async with asyncio.timeout(WITHIN):
        async for event in process.events():
            assert isinstance(event, Output), (event, said)
            said += event.data
            if words in said:
                return said
    raise AssertionError(said)


@pytest.fixture
async def session(sessions: LocalSessions) -> AsyncIterator[Session]:
    opened = await sessions.open(SessionRequest(env={"OF": "session", "WHOSE": "session"}))
    yield opened
    await opened.end()


async def test_a_command_has_its_input_environment_and_folder(session):
    await session.make_folder("sub")
    command = sh(
        "cat; echo $OF $WHOSE; pwd; echo err >&2; exit 3", env={"WHOSE": "command"}, cwd="sub"
    )
    ran = await session.run(command, stdin=b"in ")
    out = ran.stdout.split(b"\n")
    assert out[0] == b"in session command"
    assert out[1].endswith(b"/sub")
    assert (ran.stderr, ran.exit.code, ran.exit.why) == (b"err\n", 3, "")


async def test_a_command_without_input_reads_none(session):
    assert (await session.run(CommandRequest(["cat"]))).stdout == b""


async def test_much_goes_in_and_out_at_once(session):
    content = bytes(range(256)) * (1 << 14)
    ran = await session.run(CommandRequest(["tee", "/dev/stderr"]), stdin=content)
    assert ran.stdout == content
    assert ran.stderr in (content, b"tee: /dev/stderr: Permission denied\n")


async def test_a_command_that_stops_reading_ends_all_the_same(session):
    ran = await session.run(sh("head -c 3"), stdin=b"x" * (4 << 20))
    assert (ran.stdout, ran.exit.code) == (b"xxx", 0)


async def test_what_cannot_begin_says_why_as_a_shell_does(session):
    missing = await session.run(CommandRequest(["no-such-program"]))
    assert (missing.exit.code, missing.exit.why) == (127, "not_found")
    assert missing.stderr == b"no-such-program: No such file or directory\n"
    folder = await session.run(CommandRequest(["/tmp"]))
    assert (folder.exit.code, folder.exit.why) == (126, "not_executable")
    nowhere = await session.run(CommandRequest(["true"], cwd="nowhere"))
    assert (nowhere.exit.code, nowhere.exit.why) == (126, "no_folder")
    assert b"nowhere: No such file" in nowhere.stderr


async def test_arguments_may_be_longer_than_a_message(session):
    words = ["x" * 100_000] * 3
    ran = await session.run(CommandRequest(["sh", "-c", 'echo "$1$2$3"', "sh", *words]))
    assert len(ran.stdout) == 300_001


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (CommandRequest([]), "argv"),
        (CommandRequest(["echo", "a\0b"]), "zero byte"),
        (CommandRequest(["true"], env={"A=B": "1"}), "env"),
        (CommandRequest(["true"], timeout=0), "timeout is 0"),
        (CommandRequest(["true"], timeout=-1), "timeout is -1"),
        (CommandRequest(["true"], user="root"), "user 'root'"),
        (CommandRequest(["true"], terminal=Terminal(0, 5)), "terminal is"),
        (CommandRequest(["true"], terminal=Terminal(80.5, 24)), "terminal is"),  # type: ignore[arg-type]
        (CommandRequest(["x" * (3 << 20)]), "send a file"),
        (CommandRequest(["x" * 5_000_000]), "send a file"),
        (CommandRequest(["\u4e2d" * 800_000]), "send a file"),
    ],
)
async def test_bad_input_is_refused_and_the_session_is_well(session, command, words):
    with pytest.raises(SessionRefused, match=words):
        await session.run(command)
    assert (await session.run(sh("echo well"))).stdout == b"well\n"


async def test_a_number_that_is_no_signal_or_size_is_refused_and_the_session_is_well(session):
    process = await session.start(sh("cat", terminal=Terminal(), tag="cat"))
    for number in (-1, 65, 1 << 70, 9.5):
        with pytest.raises(SessionRefused, match="signal is"):
            await session.signal("cat", number)
        with pytest.raises(SessionRefused, match="signal is"):
            await process.signal(number)
    for size in (Terminal(100_000, 24), Terminal(80, -1), Terminal(80.5, 24)):  # type: ignore[arg-type]
        with pytest.raises(SessionRefused, match="terminal is"):
            await session.resize("cat", size)
        with pytest.raises(SessionRefused, match="terminal is"):
            await process.resize(size)
    await session.signal("cat", 0)
    await session.signal("cat", signal.NSIG - 1)
    assert (await process.wait()).signal == signal.NSIG - 1
    await process.close()
    assert (await session.run(sh("echo well"))).stdout == b"well\n"


async def test_what_makes_no_sense_beside_a_command_ends_that_call_alone(session):
    process = await session.start(sh("sleep 600", kept=True))
    await process._say(signal=65)
    with pytest.raises(SessionRefused, match="signal is 65"):
        await process.wait()
    await process.close()
    assert [each.pid for each in await session.processes()] == [process.pid]


async def test_what_the_hub_cannot_do_is_its_trouble_and_answered(session):
    with pytest.raises(SessionTrouble, match="OverflowError"):
        await session._ask("", "warm", session={}, size=float("inf"))
    assert (await session.run(sh("echo well"))).stdout == b"well\n"


async def test_a_command_out_of_time_is_killed_with_its_group(session):
    late = await session.run(sh("sleep 600 & echo so far; sleep 600", timeout=4))
    assert (late.exit.code, late.exit.signal, late.exit.why) == (None, 9, "timeout")
    assert late.stdout == b"so far\n"
    async with asyncio.timeout(WITHIN):
        while (await session.usage()).processes:  # noqa: ASYNC110 - nothing says it
            await asyncio.sleep(0.02)


async def test_what_a_command_leaves_in_the_background_goes_on(session):
    ran = await session.run(sh("mkfifo hold; (read word < hold; echo late > said) & echo now"))
    assert (ran.exit.code, ran.stdout) == (0, b"now\n")
    await session.run(sh("echo word > hold; while [ ! -s said ]; do sleep 0.05; done"))
    assert b"".join([piece async for piece in session.read("said")]) == b"late\n"


async def test_the_output_of_the_background_comes_after_the_exit(session):
    process = await session.start(sh("mkfifo hold; (read word < hold; echo late) & echo now"))
    events = process.events()
    async with asyncio.timeout(WITHIN):
        assert await anext(events) == Output("stdout", b"now\n")
        assert isinstance(await anext(events), Exit)
        await session.run(sh("echo word > hold"))
        assert [event async for event in events] == [Output("stdout", b"late\n")]
    await process.close()


async def test_commands_run_beside_each_other(session):
    waits = await session.start(sh("mkfifo one; read word < one; echo $word"))
    assert (
        await session.run(sh("while [ ! -p one ]; do sleep 0.05; done; echo hi > one"))
    ).exit.code == 0
    assert await until_said(waits, b"hi\n") == b"hi\n"
    assert (await waits.wait()).code == 0
    await waits.close()


async def test_a_process_is_written_to_and_signalled(session):
    words = "trap 'echo hup; exit 4' HUP; echo ready; cat; echo end; sleep 600 & wait"
    process = await session.start(sh(words, stdin=True))
    await until_said(process, b"ready\n")
    await process.write(b"given\n")
    await until_said(process, b"given\n")
    await process.close_stdin()
    await until_said(process, b"end\n")
    await process.signal(signal.SIGHUP)
    async with asyncio.timeout(WITHIN):
        assert (await process.wait()).code == 4
    with pytest.raises(ProcessGone):
        await session.signal(process.pid, signal.SIGKILL)
    await process.close()


async def test_a_terminal_is_one(session):
    words = "test -t 0 && test -t 1 && test -t 2 && stty size; read line; echo got $line; exit 5"
    process = await session.start(sh(words, terminal=Terminal(100, 30)))
    await until_said(process, b"30 100\r\n")
    await process.write(b"typed\n")
    await until_said(process, b"got typed")
    async with asyncio.timeout(WITHIN):
        assert (await process.wait()).code == 5
    await process.close()


@pytest.mark.parametrize("typed", [b"", b"a line\n", b"half a line"])
async def test_the_input_of_a_terminal_ends(session, typed):
    async with asyncio.timeout(WITHIN):
        ran = await session.run(sh("cat; exit 5", terminal=Terminal()), stdin=typed)
        assert ran.exit.code == 5
        assert ran.stdout.replace(b"\r\n", b"\n") == typed * 2, "echoed, and said by cat"
        process = await session.start(sh("cat; exit 6", terminal=Terminal()))
        await process.write(typed)
        await process.close_stdin()
        assert (await process.wait()).code == 6
        await process.close()


async def test_a_terminal_is_resized_and_interrupts(session):
    words = "trap 'stty size' WINCH; trap 'exit 7' INT; echo ready; while :; do sleep 0.05; done"
    process = await session.start(sh(words, terminal=Terminal()))
    await until_said(process, b"ready")
    await process.resize(Terminal(132, 50))
    await until_said(process, b"50 132")
    await process.write(b"\x03")
    async with asyncio.timeout(WITHIN):
        assert (await process.wait()).code == 7
    await process.close()


async def test_another_caller_finds_a_kept_command_by_its_tag(session):
    process = await session.start(
        sh("echo first; read w; echo $w; exit 6", stdin=True, kept=True, tag="server")
    )
    await until_said(process, b"first\n")
    await process.close()
    (known,) = await session.processes()
    assert (known.pid, known.tag, known.command.argv[0]) == (process.pid, "server", "sh")
    again = await session.attach("server")
    await session.write_stdin("server", b"second\n")
    assert await until_said(again, b"second\n") == b"second\n"
    async with asyncio.timeout(WITHIN):
        assert (await again.wait()).code == 6
    await again.close()
    late = await session.attach(process.pid)
    assert (await late.wait()).code == 6, "its exit is remembered"
    await late.close()
    with pytest.raises(ProcessGone, match="no process 'other'"):
        await session.attach("other")


@pytest.mark.parametrize("stdin", [b"", bytes(4 << 20)], ids=["", "held up"])
async def test_a_caller_that_hangs_up_kills_what_is_not_kept(session, stdin):
    command = sh("mkfifo up; echo > up; sleep 600")
    running = asyncio.create_task(session.run(command, stdin=stdin))
    await session.run(sh("while [ ! -p up ]; do sleep 0.05; done; read x < up"))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(WITHIN):
        while await session.processes():  # noqa: ASYNC110 - nothing says it to a third party
            await asyncio.sleep(0.01)


async def test_a_signal_that_ends_a_command_is_said(session):
    ran = await session.run(sh("kill -TERM $$"))
    assert (ran.exit.code, ran.exit.signal, ran.exit.why) == (None, 15, "")


async def test_output_that_nobody_hears_holds_nobody_up(session):
    process = await session.start(sh("head -c 3000000 /dev/zero; echo > done", kept=True))
    await process.close()
    ran = await session.run(sh("while [ ! -e done ]; do sleep 0.05; done", timeout=WITHIN))
    assert ran.exit.code == 0


async def test_of_much_output_so_much_is_kept(session):
    ran = await session.run(sh("head -c 3000000 /dev/zero"), most=1000)
    assert (len(ran.stdout), ran.exit.code) == (1000, 0)


async def test_what_a_session_is_and_uses(session):
    await session.write("file", b"x" * 100_000)
    await session.run(sh("echo hello"))
    info, usage = await session.info(), await session.usage()
    assert info.last_command == "sh -c echo hello"
    assert info.memory_mb == 256
    assert usage.disk >= 100_000 or info.isolation != "ns"
    assert info.created <= info.last_used < info.ends


async def test_commands_of_some_leave_their_hub_room_to_answer_for_others(folder):
    assert await started_with_few_files(folder, 600) == ""
    sessions = sessions_in(folder)
    first = await sessions.get("first")
    greedy = [await sessions.open(SessionRequest(processes=128)) for _ in range(2)]
    sleeps = CommandRequest(["sleep", "600"], stdin=True, kept=True)
    with pytest.raises(TooManySessions, match="ulimit -Hn"):
        for number in range(512):
            process = await greedy[number % 2].start(sleeps)
            await process.close()
    attached: list[Process] = []
    with pytest.raises(TooManySessions, match="ulimit -Hn"):
        while True:
            attached.append(await greedy[(number - 1) % 2].attach(process.pid))
    with pytest.raises(TooManySessions, match="ulimit -Hn"):
        await sessions.open(SessionRequest())
    assert (await first.info()).name == "first"
    assert (await first.usage()).processes == 0
    for process in attached:
        await process.close()
    for session in greedy:
        await session.end()
    assert (await first.run(sh("echo well"))).stdout == b"well\n"
    await first.end()
