"""What isolation costs: a program's start to its output, and programs a second.

Beside us: plain `python -c` in a process of its own, with no isolation at all, and
bubblewrap where it is installed. All run the same interpreter. And what it costs an honest
program that a fork bomb, a memory bomb or a flood of output runs beside it, again and again, or
all three do.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench._sandbox_doors import Queued, Served
from bench.peers import environment
from bench.suite import Ratio, Suite, Target
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.limits import DEFAULTS, MB
from jail.outcome import Program

_PRINT = "print(1)"
_NUMPY = "import numpy as np; print(int(np.arange(1000).sum()))"
_EXPECTED = {_PRINT: b"1\n", _NUMPY: b"499500\n"}
_AT_ONCE = (1, 2, 4, 8)
_BOMBS = {
    "a fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "a memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 20))",
    "a flood": "import os\nwhile True: os.write(1, bytes(65536))",
}
_BOMB_LIMITS = replace(DEFAULTS, wall=2.0, memory=256 * MB)
_NUMPY_PINNED = "numpy==2.2.6"

Once = Callable[[str], Awaitable[bytes]]
Measured = Callable[[], Coroutine[Any, Any, dict[str, float]]]


class _Loop:
    """One event loop for the whole suite, in a thread: sandboxes live as long as it does."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def measure(quick: bool) -> Suite:
    """Plain, bubblewrap, Penstock; Penstock preloaded, over HTTP, and through the queue."""
    python = environment("sandbox", [_NUMPY_PINNED])
    count = 40 if quick else 200
    loop = _Loop()
    cold = loop.run(Jails(ServerConfig(str(python)), concurrency=8).start())
    warm = loop.run(Jails(ServerConfig(str(python), preload=("numpy",)), concurrency=8).start())
    http, queue = Served(cold), Queued(python)
    ways: dict[str, Once] = {
        "plain python -c": _spawned([str(python), "-c"]),
        "penstock": _jailed(cold),
        "penstock, numpy preloaded": _jailed(warm),
        "penstock over HTTP": http.post,
        "penstock through the queue": queue.run,
    }
    if bwrap := shutil.which("bwrap"):
        ways["bubblewrap"] = _spawned(_bubblewrapped(bwrap, python))
    loop.run(_warm_up(ways))

    def clean_up() -> None:
        loop.run(http.stop())
        loop.run(queue.stop())
        for jails in (cold, warm):
            loop.run(jails.close())
        loop.stop()

    contenders = {
        name: _contender(loop, functools.partial(_measured, once, count))
        for name, once in ways.items()
    }
    beside = {f"penstock beside {name}": [code] for name, code in _BOMBS.items()}
    beside["penstock beside all three"] = list(_BOMBS.values())
    contenders |= {
        name: _contender(loop, functools.partial(_beside, bombs, cold, count))
        for name, bombs in beside.items()
    }
    return Suite(
        contenders=contenders,
        rounds=2 if quick else 5,
        conditions={
            "isolation": cold.level,
            "memory_by": cold.memory_by,
            "programs_a_round": count,
            "numpy": _NUMPY_PINNED,
        },
        ratios=[
            Ratio("start_p50_ms", "penstock", "plain python -c"),
            Ratio("per_second_at_4", "penstock", "plain python -c"),
            Ratio("cpu_ms_at_4", "penstock", "plain python -c"),
            Ratio("numpy_p50_ms", "penstock, numpy preloaded", "plain python -c"),
            *(Ratio("start_p50_ms", name, "penstock") for name in beside),
        ],
        targets=[
            Target("penstock start_p50_ms vs plain python -c", at_most=0.65),
            Target("penstock per_second_at_4 vs plain python -c", at_least=1.3),
            *(
                Target(f"penstock beside {bomb} start_p50_ms vs penstock", at_most=2.0)
                for bomb in _BOMBS
            ),
            Target("penstock, numpy preloaded numpy_p50_ms vs plain python -c", at_most=0.15),
        ],
        clean_up=clean_up,
    )


def _contender(loop: _Loop, measured: Measured) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        metrics: dict[str, float] = loop.run(measured())
        return metrics

    return run


async def _measured(once: Once, count: int) -> dict[str, float]:
    starts = await _latencies(once, _PRINT, count)
    metrics = {
        "start_p50_ms": statistics.median(starts),
        "start_p99_ms": statistics.quantiles(starts, n=100)[98],
        "numpy_p50_ms": statistics.median(await _latencies(once, _NUMPY, count // 4)),
    }
    for at_once in _AT_ONCE:
        before = _processor()
        metrics[f"per_second_at_{at_once}"] = await _rate(once, at_once, count)
        metrics[f"cpu_ms_at_{at_once}"] = (_processor() - before) / count * 1000
    return metrics


def _processor() -> float:
    """Seconds of processor time: of this process, all below it, and those that these outlived."""
    ticks, left = 0, [os.getpid()]
    while left:
        process = Path(f"/proc/{left.pop()}")
        with contextlib.suppress(OSError):  # it ends while we look
            ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
            for children in process.glob("task/*/children"):
                left += map(int, children.read_text().split())
    return ticks / os.sysconf("SC_CLK_TCK")


async def _beside(bombs: list[str], jails: Jails, count: int) -> dict[str, float]:
    """Each bomb is begun anew as soon as it is stopped."""

    async def begin_anew(bomb: str) -> None:
        while True:
            await jails.run(Program(bomb, limits=_BOMB_LIMITS))

    beginning = [asyncio.ensure_future(begin_anew(bomb)) for bomb in bombs]
    try:
        starts = await _latencies(_jailed(jails), _PRINT, count)
    finally:
        for running in beginning:
            running.cancel()
        await asyncio.wait(beginning)
    return {
        "start_p50_ms": statistics.median(starts),
        "start_p99_ms": statistics.quantiles(starts, n=100)[98],
    }


async def _latencies(once: Once, code: str, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await _checked(once, code)
        found.append((time.perf_counter() - began) * 1000)
    return found


async def _rate(once: Once, at_once: int, count: int) -> float:
    places = asyncio.Semaphore(at_once)

    async def one() -> None:
        async with places:
            await _checked(once, _PRINT)

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return count / (time.perf_counter() - began)


async def _checked(once: Once, code: str) -> None:
    printed = await once(code)
    if printed != _EXPECTED[code]:
        raise RuntimeError(f"{code!r} printed {printed!r}")


async def _warm_up(ways: dict[str, Once]) -> None:
    for once in ways.values():
        for code in _EXPECTED:
            await _checked(once, code)


def _jailed(jails: Jails) -> Once:
    async def once(code: str) -> bytes:
        return (await jails.run(Program(code))).stdout

    return once


def _spawned(command: list[str]) -> Once:
    async def once(code: str) -> bytes:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, code, stdout=pipe)
        printed, _ = await process.communicate()
        return printed

    return once


def _bubblewrapped(bwrap: str, python: Path) -> list[str]:
    """As much of the host as Penstock shows, in as many namespaces; no system call filter."""
    folders = {str(python.parents[1]), str(python.resolve().parents[1]), "/usr"}
    shown = [part for folder in sorted(folders) for part in ("--ro-bind", folder, folder)]
    links = [
        part
        for name in ("bin", "lib", "lib64")
        for part in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    private = ["--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", "--unshare-all", "--clearenv"]
    return [
        bwrap,
        *shown,
        *" ".join(links).split(),
        *private,
        "--die-with-parent",
        str(python),
        "-c",
    ]
