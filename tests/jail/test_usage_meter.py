"""What init reads of a program's tree, where no cgroup keeps the accounts."""

import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from jail import Limits
from jail.inside import usage_meter as scales
from jail.inside.job import Job
from jail.inside.limits_passed import Evidence, KilledFromOutside
from jail.inside.place import Place
from jail.inside.running import Running
from jail.inside.usage_meter import Meter
from jail.limits import DEFAULTS

from .conftest import MB

SMALL = replace(DEFAULTS, memory=1)


@pytest.fixture
def waiting() -> Iterator[list[str]]:
    """The numbers of eight processes that wait."""
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(8)]
    yield [str(process.pid) for process in started]
    for process in started:
        process.kill()
        process.wait()


def meter(limits: Limits, tree: list[str]) -> Meter:
    return Meter(limits.on_the_wire(), None, lambda: iter(tree), 0)


def test_a_tree_is_weighed_where_its_resident_memory_is_above_the_limit(
    waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scales, "_SOON", 100)  # however busy the machine is
    assert meter(SMALL, waiting[:1]).sample() == "memory_limit"
    assert meter(replace(DEFAULTS, memory=64 * MB), waiting).sample() is None


def test_what_cannot_be_weighed_keeps_nobody_from_looking_and_counts_in_full(
    waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    monkeypatch.setattr(scales, "_proportional", lambda *_: let_go.wait(100))
    looking = meter(SMALL, waiting)
    assert looking.sample() is None
    assert looking.sample() is None
    monkeypatch.setattr(scales, "_OVERDUE", 0.0)
    assert looking.sample() == "memory_limit"
    assert looking.memory_peak > len(waiting) * 100_000
    let_go.set()


def test_a_shortage_of_the_machine_is_known_only_by_a_kill_that_was_counted(
    waiting: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = meter(SMALL, waiting)
    monkeypatch.setattr(scales, "kills_on_machine", lambda: 0)
    looking.check_machine()
    monkeypatch.setattr(scales, "kills_on_machine", lambda: 1)
    with pytest.raises(KilledFromOutside, match="run fewer programs at once"):
        looking.check_machine()


def test_a_tree_is_counted_no_further_than_its_limit(waiting: list[str]) -> None:
    looked_at = []

    def found() -> Iterator[str]:
        for pid in waiting:
            looked_at.append(pid)
            yield pid

    counting = Meter(replace(DEFAULTS, processes=3).on_the_wire(), None, found, 0)
    assert counting.sample() == "process_limit"
    assert looked_at == waiting[:4]


@pytest.mark.parametrize(
    ("compiles", "cpu", "processes", "gives_way"),
    [(False, 0.04, 8, False), (False, 0.06, 1, True), (False, 0.0, 9, True),
     (True, 0.4, 30, False), (True, 0.6, 1, True)],
)  # fmt: skip
def test_what_is_long_gives_way_and_a_compiler_only_later(
    compiles: bool, cpu: float, processes: int, gives_way: bool
) -> None:
    asked = []
    evidence = SimpleNamespace(give_way=lambda: asked.append(True) or True)
    tree = SimpleNamespace(sample=lambda: None, cpu=cpu, processes_peak=processes)
    running = SimpleNamespace(verdict=None, gave_way=False)
    job = Job(0, 0, "program", None, [], cast(Evidence, evidence), cast(Place, None), 0)

    for _ in range(2):
        job.look(cast(Running, running), cast(Meter, tree), compiles)

    assert (asked, running.gave_way) == ([True] * gives_way, gives_way)
