"""What the kernel counts by user, and so for all programs together: none uses it up for others."""

import ctypes
import fcntl
import json
import mmap
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jail import LimitRefused, launch
from jail.inside import root, wire, zygote
from jail.isolation import probes
from jail.jails import Jails
from jail.limits import CAPS
from jail.outcome import Program

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
    server = zygote.Server(control, no_room, 0)
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
import fcntl
import mmap
import os
at = os.open({path!r}, os.O_RDONLY)
os.posix_fadvise(at, 0, 0, os.POSIX_FADV_DONTNEED)
"""


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_a_program_drops_no_file_of_others_from_memory(start: str, open_folder: Path) -> None:
    shared, beside = open_folder / "shared", open_folder / "beside"
    for file in (shared, beside):
        file.write_bytes(bytes(mmap.PAGESIZE))
    os.sync()
    exec(DROP.format(path=str(shared)), {})
    if _in_memory(shared):
        pytest.skip("the file system of the tests' folder keeps nothing elsewhere than in memory")
    config = replace(config_for(start), expose=(str(shared),))
    async with Jails(config, use_cgroups=False) as jails:
        left = False
        while not left:  # else the machine has no memory left, and drops both
            shared.read_bytes()
            beside.read_bytes()
            outcome = await jails.run(Program(DROP.format(path=str(shared)), limits=QUICK))
            assert (outcome.status, outcome.return_code) == ("finished", 0), outcome
            kept, left = _in_memory(shared), _in_memory(beside)
    assert kept


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


# Every kind of lock that a reader can take, on every file; one is held by a map alone.
LOCKS = """
import fcntl, mmap, os, struct
whole = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
kept = []
def lock(path):
    at = os.open(path, os.O_RDONLY)
    fcntl.flock(at, fcntl.LOCK_SH)
    kept.append(mmap.mmap(at, 1, prot=mmap.PROT_READ))
    os.close(at)
    for command in (fcntl.F_SETLK, fcntl.F_OFD_SETLK):
        kept.append(os.open(path, os.O_RDONLY))
        fcntl.fcntl(kept[-1], command, whole)
for path in {paths!r}:
    lock(path)
len(kept)
"""
# As `_met`, in a jail.
MEETS = """
import fcntl, os, struct
met = []
for path in {paths!r}:
    at = os.open(path, os.O_RDONLY)
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    free = struct.unpack("hhqqi4x", fcntl.fcntl(at, fcntl.F_GETLK, asked))[0] == fcntl.F_UNLCK
    try:
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        free = False
    met += [] if free else [path]
met
"""


def _met(path: Path) -> bool:
    """Whether a lock of somebody else's lies on this file of the machine."""
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with path.open("rb") as file:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, asked)
        if struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_no_lock_of_a_program_lies_on_a_file_of_the_machine(
    start: str, open_folder: Path
) -> None:
    alone, inside = open_folder / "alone", open_folder / "folder" / "inside"
    inside.parent.mkdir()
    for file in (alone, inside):
        file.write_bytes(bytes(mmap.PAGESIZE))
    config = replace(config_for(start), expose=(str(alone), str(inside.parent)))
    libc = next(
        Path(line.split()[-1])
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libc" in line
    )
    of_the_machine = [alone, inside, libc]
    paths = [*map(str, of_the_machine), "/etc/ld.so.cache", "/etc/hosts"]
    async with (
        Jails(config, use_cgroups=False) as jails,
        jails.session(QUICK) as hostile,
        jails.session(QUICK) as neighbour,
    ):
        taken = await hostile.run(LOCKS.format(paths=[*paths, "/proc/self/exe"]))
        own = await hostile.run(MEETS.format(paths=paths))
        others = await neighbour.run(MEETS.format(paths=paths))
        assert not [path for path in of_the_machine if _met(path)]
    assert taken.display == [{"text/plain": "18"}], taken
    assert own.display == [{"text/plain": str(paths)}], own  # it is refused no lock
    assert others.display == [{"text/plain": "[]"}], others


WITH_A_MOUNT_BELOW = """
import asyncio, json, sys
from dataclasses import replace
from tests.jail import restricted
from tests.jail.conftest import config_for
from jail.jails import Jails
from jail.outcome import Program
from jail.inside import syscalls
folder, start = sys.argv[1:]
config = replace(config_for(start), expose=(folder,))
restricted.enter_user_namespace()
syscalls.unshare(syscalls.NEW_NS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
syscalls.mount("below", folder + "/below", "tmpfs", 0, "mode=755")
with open(folder + "/below/file", "w") as file:
    file.write("seen")
async def main():
    async with Jails(config, use_cgroups=False) as jails:
        outcome = await jails.run(Program(f"print(end=open('{folder}/below/file').read())"))
    print(json.dumps([outcome.stdout.decode(), list(jails.not_overlaid)]))
asyncio.run(main())
"""


@pytest.mark.parametrize("start", STARTS)
def test_what_is_mounted_below_a_folder_is_seen_and_locks_there_are_reported(
    start: str, open_folder: Path
) -> None:
    (open_folder / "below").mkdir()
    started = subprocess.run(
        [sys.executable, "-c", WITH_A_MOUNT_BELOW, str(open_folder), start],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in started.stderr:
        pytest.skip(f"no user namespaces here at all: {started.stderr.strip()}")
    # Who owns the namespace of mounts can lay an overlay over each; others over none of them.
    without_overlay = [] if start == "root" else [str(open_folder)]
    assert json.loads(started.stdout) == ["seen", without_overlay], started


WITH_BARE_MOUNTS = """
import asyncio, json, os, sys
from dataclasses import replace
from tests.jail import restricted
from tests.jail.conftest import config_for
from jail.jails import Jails
from jail.outcome import Program
from jail.inside import syscalls
folder, start, *files = sys.argv[1:]
config = replace(config_for(start), expose=(folder, "/etc/profile"))
restricted.enter_user_namespace()
syscalls.unshare(syscalls.NEW_NS)
syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
for path in (folder + "/alone", "/etc/profile"):
    syscalls.mount(folder + "/seen", path, None, syscalls.MS_BIND)
# No overlay lies over one that lies over another.
lower, empty = folder + "/lower", folder + "/empty"
for _ in range(2):
    syscalls.mount("deep", folder + "/deep", "overlay", 0, f"lowerdir={lower}:{empty}")
    lower = folder + "/deep"
code = '''
import json, os
def shown(path):
    return open(path).read(), os.statvfs(path).f_flag & (os.ST_RDONLY | os.ST_NOSUID | 4) == 7
print(json.dumps([shown(path) for path in {!r}]))
'''
async def main():
    async with Jails(config, use_cgroups=False) as jails:
        outcome = await jails.run(Program(code.format(files)))
        seen = json.loads(outcome.stdout)
        print(json.dumps([seen, sorted(jails.not_overlaid), len(jails.findings)]))
asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/etc/profile").is_file(), reason="there is no such file here")
@pytest.mark.parametrize("start", STARTS)
def test_what_no_overlay_can_lie_over_is_seen_below_those_of_a_jail(
    start: str, open_folder: Path
) -> None:
    for name in ("lower", "empty", "deep"):
        (open_folder / name).mkdir()
    alone, deep = open_folder / "alone", open_folder / "deep" / "file"
    for file, text in (
        (open_folder / "seen", "seen"),
        (open_folder / "lower" / "file", "seen"),
        (alone, "hidden"),
        (deep, "hidden"),
    ):
        file.write_text(text)
    files = [str(alone), str(deep), "/etc/profile"]
    started = subprocess.run(
        [sys.executable, "-c", WITH_BARE_MOUNTS, str(open_folder), start, *files],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in started.stderr:
        pytest.skip(f"no user namespaces here at all: {started.stderr.strip()}")
    shown, bare, tried = json.loads(started.stdout)
    assert shown == [["seen", True]] * 3, started
    assert {str(alone), str(deep.parent), "/etc/profile"} <= {*bare}, started
    # What the probe of locks tries lies below none of these.
    assert tried == len(probes.at("ns")), started


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_what_the_machine_deletes_after_the_start_ends_no_later_jail(
    start: str, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, plugins = open_folder / "alone", open_folder / "folder" / "entry_points.txt"
    plugins.parent.mkdir()
    for file in (alone, plugins):
        file.write_text("x")
    monkeypatch.setattr(launch, "_own_plugins", lambda prefixes: [str(plugins)])
    # A folder of a program's own covers all of these, so each jail shows them once more.
    exposed = tuple(map(str, (alone, plugins.parent, plugins)))
    config = replace(config_for(start), expose=exposed)
    async with Jails(config, use_cgroups=False) as jails:
        hidden = await jails.run(Program(f"print(open({str(plugins)!r}).read())", limits=QUICK))
        shutil.rmtree(plugins.parent)
        alone.unlink()
        later = [await jails.run(Program("print(1)", limits=QUICK)) for _ in range(5)]
    assert hidden.stdout == b"\n", hidden
    assert [outcome.stdout for outcome in later] == [b"1\n"] * 5, later


def test_what_is_deleted_as_settings_are_copied_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    monkeypatch.setattr(os, "listdir", lambda folder: ["gone", "file"])
    root._copy(f"{tmp_path}/there", f"{tmp_path}/copy")
    assert (tmp_path / "copy" / "file").read_text() == "x"
    assert not (tmp_path / "copy" / "gone").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root of the machine makes devices")
@pytest.mark.asyncio
async def test_a_device_in_a_jail_is_not_the_machines_file() -> None:
    async with Jails(use_cgroups=False) as jails, jails.session(QUICK) as hostile:
        taken = await hostile.run(LOCKS.format(paths=["/dev/zero"]))
        assert not _met(Path("/dev/zero"))
    assert taken.display == [{"text/plain": "3"}], taken
