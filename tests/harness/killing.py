"""Start a Python process and have it SIGKILLed, or frozen, exactly where we say.

    def holds_a_permit(url):            # a scenario: a function of the test's module
        ...
        doomed.reached("holding")       # scenarios may name points of their own

    outcome = killing.run(holds_a_permit, url, at=killing.after("limiter.gate:Gate.acquire"))
    for point in killing.lines_reached("limiter.gate:Gate.renew", holds_a_permit, url):
        killing.run(holds_a_permit, url, at=point)

Product code has no hooks: the child wraps the function that a point names, or traces
its lines, before the scenario begins. Arguments and results travel as JSON.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from tests.harness import nursery
from tests.harness.selection import turn

WITHIN = 100.0
_AT_ONCE = 4


@dataclass(frozen=True)
class Point:
    """A place in the run of a process, and what happens to the process there."""

    how: Literal["before", "after", "line", "named"]
    where: str
    line: int = 0
    hit: int = 1
    action: Literal["kill", "freeze", "report"] = "kill"

    def __str__(self) -> str:
        place = f"line {self.line} of {self.where}" if self.line else f"{self.how} {self.where}"
        return place + (f", time {self.hit}" if self.hit > 1 else "")


def before(function: str, *, hit: int = 1) -> Point:
    """As `package.module:Class.method` is called for the hit-th time."""
    return Point("before", function, hit=hit)


def after(function: str, *, hit: int = 1) -> Point:
    """As it has returned. Like a patch, this sees calls through the name that is given."""
    return Point("after", function, hit=hit)


def line(function: str, number: int, *, hit: int = 1) -> Point:
    """Just before that line of the file runs, inside that function."""
    return Point("line", function, number, hit=hit)


def named(name: str, *, hit: int = 1) -> Point:
    """Where the scenario says `doomed.reached(name)`."""
    return Point("named", name, hit=hit)


def freezing(point: Point) -> Point:
    """The same place, but the process is stopped there (SIGSTOP); see `Child.thaw`."""
    return replace(point, action="freeze")


@dataclass(frozen=True)
class Outcome:
    """How a child ended."""

    killed: bool
    returned: Any = None
    reports: list[dict[str, Any]] = field(default_factory=list)


def run(scenario: Callable[..., object], *arguments: Any, at: Point | None = None) -> Outcome:
    """Run a scenario in a process to its end, which may be the point. An error in it fails us."""
    with Child(scenario, *arguments, at=at) as child:
        return child.outcome(2 * WITHIN)


def lines_reached(function: str, scenario: Callable[..., object], *arguments: Any) -> list[Point]:
    """Every line of a function that the scenario runs: one place to be killed at each."""
    watch = replace(line(function, 0), action="report")
    reports = run(scenario, *arguments, at=watch).reports
    numbers = sorted({report["line"] for report in reports if "line" in report})
    assert numbers, f"the scenario never runs {function}"
    return [line(function, number) for number in numbers]


def run_at_every_line(
    scenario: Callable[..., object], *arguments: Any, of: Sequence[str], every: int = 1
) -> int:
    """For every so many-th line that it runs of these functions or classes, others at each commit,
    run it to be killed there. How often it was: threads, and with them the lines, change order."""
    reached = [lines_reached(function, scenario, *arguments) for function in of]
    all_points = [point for points in reached for point in points]
    points = all_points[turn() % min(every, len(all_points)) :: every]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda point: run(scenario, *arguments, at=point), points))
    killed = sum(outcome.killed for outcome in outcomes)
    assert killed > len(points) / 2, f"of {len(points)} only {killed} were killed at their line"
    return killed


class Child:
    """A process that runs a scenario, for a test that does something meanwhile."""

    def __init__(
        self,
        scenario: Callable[..., object],
        *arguments: Any,
        at: Point | None = None,
        imported: Sequence[str] = (),
    ) -> None:
        """`imported`: modules that many of these need, and that their parent imports once."""
        self.reports: list[dict[str, Any]] = []
        self._at = at
        spec = {
            "scenario": _address(scenario),
            "arguments": arguments,
            "at": asdict(at) if at else None,
        }
        self._reports, reporting = os.pipe()
        try:
            modules = [*nursery.IMPORTED, *imported]
            self._process = nursery.Born(spec, reporting, imported=modules)
        finally:
            os.close(reporting)
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, name: str, within: float = WITHIN) -> dict[str, Any]:
        """Until it reports the point of that name (of a function's point: its address)."""
        deadline = time.monotonic() + within
        while True:
            report = self._next_report(deadline)
            assert report is not None, f"it ended before {name!r}; it reported {self.reports}"
            if report.get("reached") == name:
                if self._at and self._at.action == "freeze" and self._at.where == name:
                    self._process.await_stop()
                return report

    def kill(self) -> None:
        """SIGKILL, and gone when this returns. Harmless when it has ended already."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to it and to all that it started in its group."""
        os.killpg(self.pid, signal.SIGINT)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        return self._process.wait(WITHIN)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        self._process.await_stop()

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def outcome(self, within: float = WITHIN) -> Outcome:
        """Wait for its end."""
        deadline = time.monotonic() + within
        while self._next_report(deadline) is not None:
            pass
        code = self._process.wait(max(1.0, deadline - time.monotonic()))
        where = f" (to be killed at {self._at})" if self._at else ""
        assert code in (0, -signal.SIGKILL), f"it failed{where}, see its traceback: {code}"
        returned = self.reports[-1].get("returned") if self.reports else None
        return Outcome(code != 0, returned, self.reports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._reports)

    def _next_report(self, deadline: float) -> dict[str, Any] | None:
        """None at the end of its reports, which is its end."""
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._reports], [], [], deadline - time.monotonic())
            assert ready, f"it reported nothing more in time; so far {self.reports}"
            piece = os.read(self._reports, 65536)
            if not piece:
                return None
            self._unread += piece
        text, _, self._unread = self._unread.partition(b"\n")
        self.reports.append(json.loads(text))
        return self.reports[-1]


def _address(scenario: Callable[..., object]) -> str:
    """Where the child can import it from: found by file, as pytest may name modules differently."""
    file = Path(scenario.__code__.co_filename).absolute().relative_to(nursery.ROOT)
    return f"{'.'.join(file.with_suffix('').parts)}:{scenario.__qualname__}"
