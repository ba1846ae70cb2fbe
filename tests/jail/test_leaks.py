"""However many programs have run, nothing of them is left: 600 here, 100,000 in the soak."""

import asyncio
import contextlib
import errno
import glob
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from jail.inside import landlock
from jail.isolation import selftest
from jail.jails import Jails
from jail.limits import DEFAULTS
from jail.outcome import Program

from .conftest import STARTS, config_for
from .fenced import config

in_one_loop = pytest.mark.asyncio(loop_scope="module")

PATIENT = replace(DEFAULTS, wall=120.0)  # a busy machine is no finding
PROGRAMS = [
    Program("print(1)"),
    Program("import os; os.fork(); os.fork(); print(2)"),
    Program("open('f', 'w').write('x' * 100_000); 1 / 0", fetch=["f"]),
    Program("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    Program("import os, time\nif os.fork() == 0: os.setsid(); time.sleep(60)"),
    Program("print(input())", stdin=b"x" * 100_000),
]


def held(server: int) -> dict[str, int]:
    """What this process, its fork server and the machine hold for the sandbox."""
    status = Path(f"/proc/{server}/status").read_text().split("\n")
    return {
        "our descriptors": len(os.listdir("/proc/self/fd")),
        "the server's descriptors": len(os.listdir(f"/proc/{server}/fd")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "the server's mounts": len(Path(f"/proc/{server}/mounts").read_text().splitlines()),
        "children": len(Path(f"/proc/{server}/task/{server}/children").read_text().split()),
        "the server's memory, in MB": next(
            int(line.split()[1]) // 1024 for line in status if line.startswith("VmData")
        ),
    }


async def run_many(sandbox: Jails, count: int) -> None:
    waiting = iter(range(count))

    async def keep_running() -> None:
        for number in waiting:
            program = replace(PROGRAMS[number % len(PROGRAMS)], limits=PATIENT)
            outcome = await sandbox.run(program)
            assert outcome.status == "finished", outcome

    await asyncio.gather(*(keep_running() for _ in range(8)))


async def leave_nothing_behind(sandbox: Jails, count: int) -> None:
    server = (await sandbox._live_server()).ready["pid"]
    await run_many(sandbox, 50)
    before = await at_rest(server, sandbox.config.spares)
    await run_many(sandbox, count)
    assert await grown(server, before) == {}
    if sandbox._hierarchy is not None:
        assert sandbox._hierarchy.dying <= sandbox.concurrency


async def at_rest(server: int, spares: int) -> dict[str, int]:
    """What is held once no jail runs and all spares are made. The server has a socket to its
    client, and one to each spare until that gets its program."""
    for _ in range(10_000):
        now = held(server)
        if (now["children"], sockets_of(server)) == (spares, spares + 1):
            return now
        await asyncio.sleep(0.01)  # it looks again
    raise AssertionError(f"after 100 s: {now}, with {sockets_of(server)} sockets")


def sockets_of(process: int) -> int:
    count = 0
    for link in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += os.readlink(link).startswith("socket:")
    return count


async def grown(server: int, before: dict[str, int]) -> dict[str, int]:
    """What is more than before. The last jails may take a moment; after 100 s it is a leak."""
    for _ in range(10_000):
        more = {what: n for what, n in held(server).items() if n > before[what]}
        if not more:
            break
        await asyncio.sleep(0.01)  # it looks again
    return more


CLIENT = """
import asyncio, sys
from dataclasses import replace
from tests.jail.conftest import config_for
from jail.limits import DEFAULTS
from jail.jails import Jails
from jail.outcome import Program
CODE = "import os, contextlib\\nwith contextlib.suppress(OSError): os.setsid()\\n"
PROGRAM = Program(CODE + "os.fork()\\nwhile True: pass", limits=replace(DEFAULTS, cpu=60.0))
async def main():
    async with Jails(replace(config_for("user"), level=sys.argv[1])) as jails:
        server = await jails._live_server()
        running = [asyncio.ensure_future(jails.run(PROGRAM)) for _ in range(3)]
        while server.posted < 5: await asyncio.sleep(0.01)
        print(server.ready["pid"], flush=True)
        await asyncio.gather(*running)
asyncio.run(main())
"""


@pytest.mark.parametrize("level", ["ns", "landlock"])
def test_a_killed_client_takes_everything_with_it(level: str) -> None:
    if level == "landlock" and landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("no Landlock of ABI 6")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CLIENT, level]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        deadline = time.monotonic() + 100
        # The server, three inits, three programs and the child of each.
        while len(below := [server, *descendants(server)]) < 10:
            assert time.monotonic() < deadline, "they did not start"
            time.sleep(0.01)
        client.kill()
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "something outlived its client"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # it has ended meanwhile
    return [one for child in map(int, children) for one in (child, *descendants(child))]


@in_one_loop
async def test_closing_ends_what_runs_and_what_waits_as_our_failure_and_leaves_nothing() -> None:
    before = os.listdir("/proc/self/fd")
    jails = await Jails(config_for("root"), concurrency=2).start()
    groups = [*jails._hierarchy.marks] if jails._hierarchy else []
    server = await jails._live_server()
    posted = server.posted
    sleep = Program("import time; time.sleep(600)", limits=PATIENT)
    runs = [asyncio.ensure_future(jails.run(sleep)) for _ in range(4)]
    while server.posted < posted + 2:  # noqa: ASYNC110  there is nothing to await on
        await asyncio.sleep(0.01)
    await jails.close()
    assert [run.status for run in await asyncio.gather(*runs)] == ["infrastructure"] * 4
    assert not any(
        left for mark in groups for left in mark.folder.parent.glob(f"{mark.folder.name}*")
    )
    assert len(os.listdir("/proc/self/fd")) == len(before)
    assert not Path(f"/proc/{server.ready['pid']}").exists()
    assert not jails._servers  # nobody started another


@in_one_loop
async def test_a_start_that_is_cancelled_leaves_neither_its_fork_server_nor_its_cgroups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jails, tested = Jails(), asyncio.Event()

    async def never_ends(*_: object) -> None:
        tested.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(selftest, "check", never_ends)
    starting = asyncio.create_task(jails.start())
    await tested.wait()
    (server,), groups = jails._servers.values(), jails.cgroups
    starting.cancel()
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert server._process.returncode is not None
    assert not list(filter(os.path.exists, groups))


@in_one_loop
async def test_a_run_that_gets_no_sockets_keeps_no_descriptors(
    sandbox: Jails, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(socket, "socketpair", refused)
    assert (await sandbox.run(Program("1"))).status == "infrastructure"
    assert os.listdir("/proc/self/fd") == before


MANY_FILES = "for number in range(3000): open(f'{name}-{{number}}', 'w')"


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock of ABI 6")
@pytest.mark.parametrize("start", STARTS)
@in_one_loop
async def test_a_programs_folder_is_gone_when_its_result_is_there(start: str) -> None:
    name = secrets.token_hex(8)
    async with Jails(config("landlock", start), use_cgroups=False) as jails:
        outcome = await jails.run(Program(MANY_FILES.format(name=name), limits=PATIENT))
        left = glob.glob(f"{tempfile.gettempdir()}/penstock-jails-*/*/home/{name}-*")
    assert (outcome.return_code, left) == (0, []), outcome


VERY_MANY_FILES = """
for number in range(100_000): open(str(number), "w").close()
print("made", flush=True)
import time; time.sleep(600)
"""


def folders_of_programs() -> list[str]:
    return glob.glob(f"{tempfile.gettempdir()}/penstock-jails-*/*/home")


def files_in(home: str) -> int:
    with contextlib.suppress(FileNotFoundError):  # another test's, which has just ended
        return len(os.listdir(home))
    return 0


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock of ABI 6")
@in_one_loop
async def test_nobody_waits_for_the_files_of_a_client_that_hung_up() -> None:
    async with Jails(config("landlock", "user"), use_cgroups=False) as jails:
        running = asyncio.ensure_future(jails.run(Program(VERY_MANY_FILES, limits=PATIENT)))
        full = None
        while full is None:
            await asyncio.sleep(0.1)
            found = ((files_in(home), home) for home in folders_of_programs())
            full = next((home for count, home in found if count >= 100_000), None)
        running.cancel()
        outcomes = [await jails.run(Program("print(1)")) for _ in range(3)]
        assert os.path.exists(full), "it was gone before the others had run"
        while os.path.exists(full):  # noqa: ASYNC110  there is nothing to await on
            await asyncio.sleep(0.01)
    assert [outcome.stdout for outcome in outcomes] == [b"1\n"] * 3, outcomes


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock of ABI 6")
def test_what_outlives_fork_server_and_inits_is_ended_and_its_files_removed() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CLIENT, "landlock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdout is not None
        server = int(client.stdout.readline())
        deadline = time.monotonic() + 100
        while len(below := descendants(server)) < 9:  # with what three programs have started
            assert time.monotonic() < deadline, "they did not start"
            time.sleep(0.01)
        inits = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # so that none of them notices
            for pid in (server, *map(int, inits)):
                os.kill(pid, number)
        while any(Path(f"/proc/{pid}").exists() for pid in below):
            assert time.monotonic() < deadline, "something outlived them"
            time.sleep(0.01)
        client.kill()
    while left := [home for home in folders_of_programs() if owner(home) in map(str, below)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def owner(home: str) -> str:
    """The init that made it."""
    return home.split("/")[-2].partition("-")[0]


@pytest.mark.timeout(600)
@in_one_loop
async def test_hundreds_of_programs_leave_nothing_behind(sandbox: Jails) -> None:
    await leave_nothing_behind(sandbox, 300)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@in_one_loop
async def test_a_hundred_thousand_programs_leave_nothing_behind(sandbox: Jails) -> None:
    await leave_nothing_behind(sandbox, 50_000)
