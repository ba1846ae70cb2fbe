"""A scenario killed at line after line: each time in a fork of one process that has all imported.

    deaths = dying.at_every_line(opens_and_ends, url, of=["worker.lifecycle.attempt:Attempts"])

A new interpreter for each would take most of a second; a fork takes a few milliseconds.
"""

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType, FrameType
from typing import Any

from tests.harness import doomed, killing

_AT_ONCE = 4


def at_every_line(
    scenario: Callable[..., object], *arguments: Any, of: Sequence[str], every: int = 1
) -> int:
    """See which lines of these functions, or classes, it reaches, and run it for every so
    many-th of them, to be killed there. How many were."""
    address = killing._address(scenario)
    with killing.Child(_die_over_and_over, address, arguments, list(of), every) as child:
        points, killed, failed = child.outcome(within=600).returned
    assert not failed, f"these neither came to the line nor to a good end: {failed}"
    assert killed > points / 2, f"of {points} only {killed} were killed at their line"
    return int(killed)


def _die_over_and_over(
    scenario: str, arguments: list[Any], of: list[str], every: int
) -> tuple[int, int, list[str]]:
    """Runs in a process of its own."""
    points = _lines(scenario, arguments, of)[::every]
    killed, failed, running = 0, [], dict[int, killing.Point]()
    for n in range(len(points) + _AT_ONCE):
        if n >= _AT_ONCE or n >= len(points):
            if not running:
                break
            pid, status = os.wait()
            point = running.pop(pid)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                killed += 1
            elif status:
                failed.append(str(point))
        if n < len(points):
            running[_forked(partial(_armed, points[n], scenario, arguments))] = points[n]
    return len(points), killed, failed


def _lines(scenario: str, arguments: list[Any], of: list[str]) -> list[killing.Point]:
    """That the scenario runs, each once, in the order of the first time."""
    codes = {code: name for name in of for code in doomed.codes_of(doomed._find(name))}
    read, write = os.pipe()
    pid = _forked(partial(_watched, codes, write, scenario, arguments))
    os.close(write)
    with open(read) as told:
        seen = dict.fromkeys(told.read().splitlines())
    assert os.waitpid(pid, 0)[1] == 0, "the scenario fails even where nobody kills it"
    return [killing.line(*json.loads(each)) for each in seen]


def _watched(codes: dict[CodeType, str], out: int, scenario: str, arguments: list[Any]) -> None:
    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code not in codes:
            return None
        if event == "line":
            said = json.dumps([codes[frame.f_code], frame.f_lineno])
            os.write(out, said.encode() + b"\n")
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    doomed.run_scenario(scenario, arguments)


def _armed(point: killing.Point, scenario: str, arguments: list[Any]) -> None:
    doomed._point = point
    doomed._arm(point)
    doomed.run_scenario(scenario, arguments)


def _forked(deed: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        doomed._reporting = None
        deed()
        code = 0
    except BaseException:  # noqa: BLE001 - it is told, and the process ends here
        traceback.print_exc()
    finally:
        os._exit(code)
