"""How long each test took, and how much of a processor: a file that a person can read.

`tests/conftest.py` has these hooks. The file is `.pytest_cache/durations.tsv`, or the one that
PENSTOCK_DURATIONS names: processor seconds, wall seconds, the test; the dearest first. Processor
time is that of the test's process and of all that it started, as a control group counts it; without
one, of the children it waited for, which leaves out servers and jails.
"""

import atexit
import contextlib
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import budget

FILE = Path(os.environ.get("PENSTOCK_DURATIONS", ".pytest_cache/durations.tsv"))
_SHOWN = 20
_took: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
_ended = itertools.count()
_loops: list[float] = []
_loading: list[float] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_BEGAN] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    report = yield
    now = _processor_seconds()
    report.processor, item.stash[_BEGAN] = now - item.stash[_BEGAN], now
    if call.when == "teardown" and (earlier := next(_ended)) % budget.EVERY == 0:
        report.loop, report.loading = budget.loop(), 0.0 if earlier else time.process_time()
    return report


def pytest_runtest_logreport(report: Any) -> None:
    if not os.environ.get("PYTEST_XDIST_WORKER"):  # the controller gets the reports of all
        took = _took[report.nodeid]
        took[0] += getattr(report, "processor", 0.0)
        took[1] += report.duration
        if hasattr(report, "loop"):
            _loops.append(report.loop)
            _loading.append(report.loading)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if len(_took) < 2 * _SHOWN:
        return
    rows = sorted(((cpu, wall, test) for test, (cpu, wall) in _took.items()), reverse=True)
    FILE.parent.mkdir(exist_ok=True)
    if not next(_ended):  # other processes ran the tests
        _loading.append(time.process_time())
    budget.note({test: cpu for cpu, _, test in rows}, sum(_loading), _loops)
    FILE.write_text("".join(f"{cpu:8.2f}\t{wall:8.2f}\t{test}\n" for cpu, wall, test in rows))
    folders: dict[str, float] = defaultdict(float)
    for cpu, _, test in rows:
        folders["/".join(Path(test.partition("::")[0]).parts[:3])] += cpu
    write = terminalreporter.write_line
    write(f"processor time: {sum(folders.values()):,.0f} s, all in {FILE}; by folder:")
    for folder, cpu in sorted(folders.items(), key=lambda one: -one[1])[:_SHOWN]:
        write(f"{cpu:8.1f} s  {folder}")
    write(f"the {_SHOWN} dearest tests, in processor and wall seconds:")
    for cpu, wall, test in rows[:_SHOWN]:
        write(f"{cpu:8.2f} {wall:8.2f}  {test}")


def _own_group() -> Path | None:
    """What counts this process and all that it starts, for root with cgroup v1, if processor time
    is only counted there and not limited."""
    group = Path(f"/sys/fs/cgroup/cpuacct/penstock-tests-{os.getpid()}")
    if (group.parent / "cpu.shares").exists():
        return None
    try:
        group.mkdir(exist_ok=True)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    atexit.register(_leave, group)
    return group / "cpuacct.usage"


def _leave(group: Path) -> None:
    with contextlib.suppress(OSError):  # what it started may still end
        (group.parent / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


_GROUP = _own_group()


def _processor_seconds() -> float:
    if _GROUP:
        return int(_GROUP.read_text()) / 1e9
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


_BEGAN = pytest.StashKey[float]()
