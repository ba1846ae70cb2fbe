"""What the kernel counts by user, and so for all programs together: none uses it up for others."""

import ctypes
import mmap
import os
import resource
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.sandbox.local import Jails, LimitRefused, Program
from worker.sandbox.local.inside import wire, zygote
from worker.sandbox.local.limits import CAPS

from .conftest import QUICK, STARTS, config_for

_NO_CLONE_HAS_IT = 0x800  # CLONE_SIGHAND, without the memory that it needs
# Sends descriptors to itself and never takes them, from many threads at once, until it is told no.
FLOOD = """
import array, socket, threading
kept, said = [], []
def flood():
    try:
        while True:
            kept.append(socket.socketpair())
            many = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))]
            kept[-1][0].sendmsg([b"x"], many)
    except OSError as problem:
        said.append(problem.strerror)
threads = [threading.Thread(target=flood) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"Too many references: cannot splice" in said
"""


@pytest.fixture
def usual_descriptors() -> Iterator[None]:
    """1,024 of them, raised at will: what a shell or a service has at first."""
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, kept[1]), kept[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, kept)


@pytest.mark.usefixtures("usual_descriptors")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_descriptors_under_way_do_not_keep_others_from_starting(start: str) -> None:
    async with Jails(config_for(start), use_cgroups=False) as jails:
        limits = replace(QUICK, open_files=jails.caps.open_files)
        async with jails.session(limits) as hostile:
            flooded = await hostile.run(FLOOD)
            assert flooded.display == [{"text/plain": "True"}], flooded
            outcomes = [await jails.run(Program("print(1)", limits=QUICK)) for _ in range(5)]
            server = (await jails._live_server()).ready["pid"]
            made = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert [outcome.stdout for outcome in outcomes] == [b"1\n"] * 5, outcomes
    assert len(made) < 10


@pytest.mark.usefixtures("usual_descriptors")
def test_more_open_files_than_leave_room_for_ours_are_refused() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    jails = Jails(caps=replace(CAPS, open_files=1 << 30))
    with pytest.raises(LimitRefused, match="open_files"):
        replace(QUICK, open_files=most).within(jails.caps)


def test_a_client_that_went_away_costs_a_fork_server_with_no_room_nothing() -> None:
    no_room: Any = SimpleNamespace(clone_flags=_NO_CLONE_HAS_IT)
    reader, writer = os.pipe()
    os.close(reader)
    control, other = wire.pair()
    server = zygote.Server(control, no_room, 0, True)
    server._hand_over({"run": 1, "what": "program"}, [writer, writer])
    os.close(writer)
    control.close()
    other.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that every user of the machine may read, as `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _in_memory(path: Path) -> bool:
    """Whether the page cache has the file's first page; the kernel tells this to its owner."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE) as mapped:
        page = ctypes.c_char.from_buffer(mapped)
        told = ctypes.create_string_buffer(1)
        asked = ctypes.CDLL(None, use_errno=True).mincore
        assert asked(ctypes.c_void_p(ctypes.addressof(page)), mmap.PAGESIZE, told) == 0
        del page
    return bool(told.raw[0] & 1)


DROP = """
import ctypes
import mmap
import os
at = os.open({path!r}, os.O_RDONLY)
os.posix_fadvise(at, 0, 0, os.POSIX_FADV_DONTNEED)
"""


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_a_program_drops_no_file_of_others_from_memory(start: str, open_folder: Path) -> None:
    shared = open_folder / "shared"
    shared.write_bytes(bytes(mmap.PAGESIZE))
    os.sync()
    exec(DROP.format(path=str(shared)), {})
    if _in_memory(shared):
        pytest.skip("the file system of the tests' folder keeps nothing elsewhere than in memory")
    shared.read_bytes()
    config = replace(config_for(start), expose=(str(shared),))
    async with Jails(config, use_cgroups=False) as jails:
        outcome = await jails.run(Program(DROP.format(path=str(shared)), limits=QUICK))
    assert (outcome.status, outcome.return_code) == ("finished", 0), outcome
    assert _in_memory(shared)


WHAT_LASTS = """
import mmap, os
with open("mine", "w+b") as file:
    file.write(b"x" * 4096)
    file.flush()
    os.fsync(file)
    os.fdatasync(file)
    mmap.mmap(file.fileno(), 4096).flush()
print(os.path.getsize("mine"))
"""


@pytest.mark.asyncio
async def test_a_program_that_makes_its_files_last_goes_on(sandbox: Jails) -> None:
    outcome = await sandbox.run(Program(WHAT_LASTS, limits=QUICK))
    assert outcome.stdout == b"4096\n", outcome
