"""A session sandbox: from its creation to a command's first output, many at once, and at rest.

Ours is asked as the local provider asks it, by its hub. The peers start a process for each session,
run one command in it and end it: they keep nothing alive between two commands. `unshare` makes the
same namespaces as we do, without limits, a filter of system calls or a root of its own.
"""

import asyncio
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from bench.suite import Ratio, Suite, Target
from worker.sandbox.local.settings import SandboxSettings
from worker.sandbox.sessions import CommandRequest, LocalSessions, SessionRequest
from worker.sandbox.sessions.settings import SessionSettings

FIRST, OUTPUT = ["echo", "hi"], b"hi\n"
AT_ONCE, IDLE = 64, 50
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
    sessions = LocalSessions(SandboxSettings.load(), settings)
    times = 10 if quick else 50
    peers = {"unshare": UNSHARE, "bubblewrap": BWRAP if shutil.which("bwrap") else []}
    contenders: dict[str, Callable[[], Mapping[str, float]]] = {
        "session": lambda: asyncio.run(_ours(sessions, folder, times)),
        "subprocess": partial(_peer, [], times),
    }
    for name, words in peers.items():
        if words:
            contenders[name] = partial(_peer, words, times)

    def end() -> None:
        for hub in _hubs(folder):
            os.kill(hub, signal.SIGTERM)
        shutil.rmtree(folder, ignore_errors=True)

    return Suite(
        contenders=contenders,
        rounds=1 if quick else 5,
        conditions={"at once": AT_ONCE, "idle": IDLE, "command": " ".join(FIRST), "each": times},
        ratios=[
            Ratio("first output ms", "session", peer) for peer in contenders if peer != "session"
        ],
        targets=[
            Target("session first output ms", at_most=8),
            Target("session 64 at once s", at_most=1),
            Target("session idle MB", at_most=4),
            Target("session overhead ms", at_most=3),
        ],
        clean_up=end,
    )


async def _ours(sessions: LocalSessions, folder: Path, times: int) -> dict[str, float]:
    await _first_output(sessions)  # which starts the hub
    first = [await _first_output(sessions) for _ in range(times)]
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
    before = _memory(hub)
    idle = await asyncio.gather(*(sessions.open(SessionRequest()) for _ in range(IDLE)))
    each = (_memory(hub) - before) / IDLE
    await asyncio.gather(*(one.end() for one in idle))
    return {
        "first output ms": statistics.median(first) * 1e3,
        "overhead ms": statistics.median(overhead) * 1e3,
        "64 at once s": at_once,
        "idle MB": each / 1e6,
    }


async def _first_output(sessions: LocalSessions) -> float:
    """Seconds until it is there. The session's end is not among them."""
    began = time.perf_counter()
    session = await sessions.open(SessionRequest())
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
