"""A session sandbox: from its creation to a command's first output, many at once, and at rest.

Ours is asked as the local provider asks it, by its hub. The peers start a process for each session,
run one command in it and end it: they keep nothing alive between two commands. `unshare` makes the
same namespaces as we do, without limits, a filter of system calls or a root of its own.

`e2b sdk` is E2B's own package, unchanged, against `penstock sandbox serve --e2b` of this machine.
`images` opens sessions from an image of one layer and from one of twenty, in turns, and unpacks a
layer. `forks` forks a session that has written nothing, and one with 1,000 files of 10 kB: shared,
and copied because something runs in it. What 64 forks of that one add is memory of files.
"""

import asyncio
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench import _session_images
from bench.suite import Ratio, Suite, Target
from jail.images.settings import ImageSettings
from jail.sessions import CommandRequest, LocalSessions, Session, SessionRequest
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings

FIRST, OUTPUT = ["echo", "hi"], b"hi\n"
AT_ONCE, IDLE, SDK_AT_ONCE = 64, 50, 50
FILES = "head -c 10000000 /dev/urandom | split -b 10000 -a 3 -d -"
FORKS = 20
PAUSE = 0.05  # seconds, in which the fork server has made its next spare
KEY = f"e2b_{'a1' * 20}"
# What the kernel itself takes, of the whole machine: other programs must rest.
KERNEL = ("Slab", "KernelStack", "PageTables", "Percpu")
UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--net", "--ipc",
           "--uts", "--cgroup"]  # fmt: skip
BWRAP = ["bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr", "--symlink",
         "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64",
         "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # fmt: skip
# A shell that reads no profile of the machine's: the jail has none either.
SHELL = ["bash", "--noprofile", "-lc", "true"]


def measure(quick: bool) -> Suite:
    folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    settings = SessionSettings.load(local_sandboxes=str(folder), session_hub_idle=600)
    sandbox, store = SandboxSettings.load(), folder / "images"
    sessions = LocalSessions(sandbox, settings, ImageSettings.load(images=store))
    _session_images.add(folder, store, sandbox.sandbox_uid)
    times = 10 if quick else 50
    peers = {"unshare": UNSHARE, "bubblewrap": BWRAP if shutil.which("bwrap") else []}
    contenders: dict[str, Callable[[], Mapping[str, float]]] = {
        "session": lambda: asyncio.run(_ours(sessions, folder, times)),
        "forks": lambda: asyncio.run(_forks(sessions)),
        "images": lambda: {
            **asyncio.run(_layers(sessions, times)),
            **_session_images.unpacked(folder, sandbox.sandbox_uid),
        },
        "subprocess": partial(_peer, [], times),
    }
    for name, words in peers.items():
        if words:
            contenders[name] = partial(_peer, words, times)
    server = Server(folder / "e2b")
    if find_spec("e2b"):
        contenders["e2b sdk"] = lambda: asyncio.run(_sdk(server.url, times))

    rooted = [name for name in ("bubblewrap",) if name in contenders]  # with a root of its own

    def end() -> None:
        server.end()
        for hub in (*_hubs(folder), *_hubs(folder / "e2b")):
            os.kill(hub, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)

    return Suite(
        contenders=contenders,
        rounds=1 if quick else 5,
        conditions={"at once": AT_ONCE, "idle": IDLE, "command": " ".join(FIRST), "each": times},
        ratios=[
            Ratio("first output ms", "session", peer)
            for peer in contenders
            if peer not in ("session", "forks", "images")
        ],
        targets=[
            *(Target(f"session first output ms vs {peer}", at_most=1) for peer in rooted),
            Target("session idle MB", at_most=4),
            Target(f"forks {AT_ONCE} forks more %", at_most=5),
        ],
        clean_up=end,
    )


async def _ours(sessions: LocalSessions, folder: Path, times: int) -> dict[str, float]:
    await _first_output(sessions)  # which starts the hub
    first = [await _first_output(sessions) for _ in range(times)]
    rested = [await _first_output(sessions, pause=PAUSE) for _ in range(times // 2)]
    session = await sessions.open(SessionRequest())
    shell = CommandRequest(SHELL)
    overhead = []
    for _ in range(times):
        inside = await _timed(session.run(shell))
        overhead.append(inside - await _timed(asyncio.to_thread(_plain, SHELL)))
    await session.end()
    together = asyncio.gather(*(_first_output(sessions) for _ in range(AT_ONCE)))
    at_once = await _timed(together)
    (hub,) = _hubs(folder)
    before, kernel = _memory(hub), _kernel()
    idle = await asyncio.gather(*(sessions.open(SessionRequest()) for _ in range(IDLE)))
    each, of_kernel = (_memory(hub) - before) / IDLE, (_kernel() - kernel) / IDLE
    await asyncio.gather(*(one.end() for one in idle))
    return {
        "first output ms": statistics.median(first) * 1e3,
        "first output after a pause ms": statistics.median(rested) * 1e3,
        "overhead ms": statistics.median(overhead) * 1e3,
        "64 at once s": at_once,
        "idle MB": (each + of_kernel) / 1e6,
        "idle kernel MB": of_kernel / 1e6,
    }


async def _forks(sessions: LocalSessions) -> dict[str, float]:
    parent = await sessions.open(SessionRequest())
    idle = [await _fork(parent) for _ in range(FORKS)]
    before = _of_files()
    await parent.run(CommandRequest(["sh", "-c", FILES]))
    written = _of_files() - before
    full = [await _fork(parent) for _ in range(FORKS)]
    before = _of_files()
    children = await asyncio.gather(*(parent.fork(SessionRequest()) for _ in range(AT_ONCE)))
    more = _of_files() - before
    await asyncio.gather(*(child.end() for child in children))
    await parent.start(CommandRequest(["sleep", "600"], kept=True))
    copied = [await _fork(parent) for _ in range(FORKS)]
    await parent.end()
    return {
        "idle session ms": statistics.median(idle) * 1e3,
        "1,000 files ms": statistics.median(full) * 1e3,
        "1,000 files copied ms": statistics.median(copied) * 1e3,
        f"{AT_ONCE} forks more %": 100 * more / written,
    }


async def _fork(parent: Session) -> float:
    began = time.perf_counter()
    child = await parent.fork(SessionRequest())
    seconds = time.perf_counter() - began
    await child.end()
    return seconds


async def _layers(sessions: LocalSessions, times: int) -> dict[str, float]:
    found: dict[str, list[float]] = {"one": [], "twenty": []}
    await _first_output(sessions, "one")  # which starts the fork server of images
    for _ in range(times):
        for image, seconds in found.items():
            seconds.append(await _first_output(sessions, image))
    one, twenty = (statistics.median(seconds) * 1e3 for seconds in found.values())
    return {"first output from one layer ms": one, "19 layers more ms": twenty - one}


class Server:
    """`penstock sandbox serve --e2b`, started when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @cached_property
    def url(self) -> str:
        own = {
            "PENSTOCK_E2B_API_KEY": KEY, "PENSTOCK_LOCAL_SANDBOXES": str(self._folder),
            "PENSTOCK_IMAGES": str(self._folder / "images"), "PENSTOCK_SESSION_HUB_IDLE": "600",
        }  # fmt: skip
        penstock = Path(sys.executable).with_name("penstock")
        self._process = subprocess.Popen(
            [penstock, "sandbox", "serve", "--port", "0", "--e2b", "0"],
            env=os.environ | own,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # Sandbox Fusion's address
        return self._process.stdout.readline().strip()

    def end(self) -> None:
        if self._process:
            self._process.terminate()
            self._process.communicate()


async def _sdk(url: str, times: int) -> dict[str, float]:
    options = {"api_key": KEY, "api_url": url, "sandbox_url": url}
    await _sdk_output(options)
    alone = [await _sdk_output(options) for _ in range(times)]
    together = await asyncio.gather(*(_sdk_output(options) for _ in range(SDK_AT_ONCE)))
    return {
        "first output ms": statistics.median(alone) * 1e3,
        "first output p99 ms": _p99(alone) * 1e3,
        f"{SDK_AT_ONCE} at once p99 ms": _p99(together) * 1e3,
    }


async def _sdk_output(options: Mapping[str, Any]) -> float:
    from e2b import AsyncSandbox

    began = time.perf_counter()
    box = await AsyncSandbox.create(**options)
    ran = await box.commands.run(" ".join(FIRST))
    seconds = time.perf_counter() - began
    if ran.stdout.encode() != OUTPUT:
        raise RuntimeError(f"a sandbox said {ran}")
    await box.kill()
    return seconds


def _p99(found: Sequence[float]) -> float:
    return sorted(found)[max(0, math.ceil(0.99 * len(found)) - 1)]


async def _first_output(sessions: LocalSessions, image: str = "", pause: float = 0) -> float:
    """Seconds until it is there. The pause before, and the session's end, are not among them."""
    await asyncio.sleep(pause)
    began = time.perf_counter()
    session = await sessions.open(SessionRequest(image=image))
    ran = await session.run(CommandRequest(FIRST))
    seconds = time.perf_counter() - began
    if ran.stdout != OUTPUT:
        raise RuntimeError(f"a session said {ran}")
    await session.end()
    return seconds


def _peer(words: list[str], times: int) -> dict[str, float]:
    found = []
    for _ in range(times):
        began = time.perf_counter()
        if _plain([*words, *FIRST]) != OUTPUT:
            raise RuntimeError(f"{words} said something else")
        found.append(time.perf_counter() - began)
    return {"first output ms": statistics.median(found) * 1e3}


def _plain(words: list[str]) -> bytes:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True).stdout


async def _timed(work: Awaitable[object]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def _hubs(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append(int(process.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def _kernel() -> int:
    """Bytes."""
    return sum(map(_in_use, KERNEL))


def _of_files() -> int:
    """Bytes that files in memory take, on the whole machine."""
    return _in_use("Shmem")


def _in_use(what: str) -> int:
    found = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return sum(int(size) << 10 for name, size, *_ in found if name == f"{what}:")


def _memory(process: int) -> int:
    """Its proportional share, and that of all below it."""
    total = 0
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            total = int(line.split()[1]) << 10
    for thread in Path(f"/proc/{process}/task").iterdir():
        for child in (thread / "children").read_text().split():
            try:
                total += _memory(int(child))
            except OSError:
                continue  # it has ended meanwhile
    return total
