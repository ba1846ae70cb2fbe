"""A program's cases per second when it is judged, beside those who do it today.

Each case: twenty numbers in, their sum out. Every run has a program of its own, so that
nothing is found compiled already.

    judge        `LocalSandbox.judge`: compiled once, each case isolated
    queue        `CodeQueue.judge`, and a worker process with the embedded sandbox
    runs         what `score` did before: a run of the embedded sandbox for each case, 16 at once
    plain        subprocesses in line, compiled once, nothing isolated: the floor
    verl client  verl's reward, a request for each case to `penstock sandbox serve`
    prime_code   verl's other reward, Python alone, all cases right
    scalebox     ScaleBox's worker, Python alone, all cases right
    costs        how the judge grows: its wall beside its parts, traffic to Redis, an early stop,
                 and with a server that only runs programs, its cases at once

verl's two need `--peer verl=FOLDER`, its `utils/reward_score`; ScaleBox's needs
`--peer scalebox=FOLDER`, its source. Those that compile for each case do so for a few cases only.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bench._judge_doors import PERMITS, Doors
from bench._judge_programs import KINDS, Kind, cases, plainly
from bench.peers import FOLDERS, environment, run_json
from bench.suite import Ratio, Suite, Target
from jail.judge.formats import Cases
from worker.queue.suite_store import value_of

_PEERS = [
    "aiofiles==25.1.0", "aiohttp==3.14.5", "databases==0.9.0", "fastapi==0.165.0",
    "numpy==2.2.6", "psutil==7.2.2", "pyyaml==6.0.3", "requests==2.34.2", "structlog==26.1.0",
    "tenacity==9.2.1",
]  # fmt: skip
_CONTENDERS = Path(__file__).parent / "judge_contenders"
_FEW = 4  # cases, where each one compiles
_SHORT_ONES = 3  # programs in a round, where a tenth of a second is all that one takes
_GOALS: Mapping[str, float] = {"python": 5, "cpp": 50, "cpp iostream": 20, "go": 12, "java": 8}
_AGAINST_VERL: Mapping[str, float] = {"python": 5, "cpp": 20, "cpp iostream": 20}
_COMMANDS = "Redis commands of 750 cases vs 250"
_AT_FOREIGN = f"{4 * PERMITS + 1} cases at {PERMITS} permits vs 5 in line"
_LARGE = 100_000  # bytes of each input of a large suite


def measure(quick: bool) -> Suite:
    """All contenders, over the languages that are here."""
    kinds = {name: kind for name, kind in KINDS.items() if kind.here}
    count = 20 if quick else 50
    many, few = cases(count), cases(_FEW)
    doors = Doors()

    def over(
        way: Callable[[Kind, Cases], object], *, compiles_each: bool = False
    ) -> Callable[[], dict[str, float]]:
        def run() -> dict[str, float]:
            found = {}
            for name, kind in kinds.items():
                some = few if compiles_each and kind.compiler else many
                times = range(1 if kind.compiler else _SHORT_ONES)
                seconds = statistics.median(_seconds(way, kind, some) for _ in times)
                found[f"{name} cases/s"] = len(some.cases) / seconds
            return found

        return run

    contenders: dict[str, Callable[[], Mapping[str, float]]] = {
        "judge": over(doors.judge),
        "queue": over(doors.queue),
        "runs": over(doors.runs, compiles_each=True),
        "plain": over(lambda kind, some: plainly(kind, kind.new(), some)),
        "costs": lambda: _costs(doors, kinds, many),
    }
    if "verl" in FOLDERS:
        contenders["verl client"] = over(
            lambda kind, some: _peer("verl_client.py", "verl", kind, some, doors.url),
            compiles_each=True,
        )
        contenders["prime_code"] = lambda: _python_alone("prime_code.py", "verl", many)
    if "scalebox" in FOLDERS:
        contenders["scalebox"] = lambda: _python_alone("scalebox.py", "scalebox", many)
    peers = {
        name: list(kinds) if name in ("runs", "plain", "verl client") else ["python"]
        for name in contenders
        if name not in ("judge", "queue", "costs")
    }
    return Suite(
        contenders=contenders,
        rounds=1 if quick else 2,
        conditions={"cases": count, "cases of those that compile for each": _FEW},
        ratios=[
            *(Ratio(f"{kind} cases/s", "judge", peer) for peer in peers for kind in peers[peer]),
            *(Ratio(f"{kind} cases/s", "queue", "judge") for kind in kinds),
        ],
        targets=list(_targets(kinds, peers)),
        clean_up=doors.stop,
    )


def _seconds(way: Callable[[Kind, Cases], object], kind: Kind, some: Cases) -> float:
    """A way may tell its own: a peer's, without the start of its interpreter."""
    began = time.perf_counter()
    itself = way(kind, some)
    return itself if isinstance(itself, float) else time.perf_counter() - began


def _targets(kinds: Mapping[str, Kind], peers: Mapping[str, object]) -> list[Target]:
    """What the judge was built to reach."""
    against: dict[str, Mapping[str, float]] = {"runs": _GOALS, "plain": {"python": 8}}
    if "verl client" in peers:
        against |= {"verl client": _AGAINST_VERL}
    if "scalebox" in peers:
        against |= {"scalebox": {"python": 1.5}}
    rates = [
        Target(f"judge {kind} cases/s vs {peer}", at_least=goal)
        for peer, goals in against.items()
        for kind, goal in goals.items()
        if kind in kinds
    ]
    walls = [
        Target(f"costs {name} wall vs its parts", at_most=1.25)
        for name, kind in kinds.items()
        if kind.compiler
    ]
    return [
        *rates,
        *walls,
        Target("queue python cases/s vs judge", at_least=1 / 1.15),
        Target(f"costs {_COMMANDS}", at_most=1.1),
        Target("costs 16 samples' bytes vs one suite", at_most=1.1),
        Target(f"costs {_AT_FOREIGN}", at_most=1.25),
        Target("costs first of 100 fails vs one case", at_most=1.2),
    ]


def _costs(doors: Doors, kinds: Mapping[str, Kind], many: Cases) -> dict[str, float]:
    found = {
        f"{name} wall vs its parts": _beside_its_parts(doors, kind, many)
        for name, kind in kinds.items()
        if kind.compiler
    }
    python = KINDS["python"]
    found[_COMMANDS] = _commands(doors, cases(750)) / _commands(doors, cases(250))
    suite = _large_suite()
    size = sum(len(value_of(raw)) for raw in suite.packed.blobs.values())
    found["16 samples' bytes vs one suite"] = doors.traffic(python, suite, 16)[1] / size
    found[_AT_FOREIGN] = _slept(doors, 4 * PERMITS + 1) / (5 * _slept(doors, 1))
    found["first of 100 fails vs one case"] = _stopped(doors, 100) / _stopped(doors, 1)
    return found


def _beside_its_parts(doors: Doors, kind: Kind, some: Cases) -> float:
    """The wall of it all, beside its own compile and as many runs without isolation, in line."""
    began = time.perf_counter()
    result = doors.judge(kind, some)
    wall = time.perf_counter() - began
    compiled = result.compile_result
    if compiled is None or compiled.execution_time is None:
        raise RuntimeError(f"{kind.language}: nothing was compiled")
    return wall / (compiled.execution_time + plainly(kind, kind.new(), some)[1])


def _commands(doors: Doors, some: Cases) -> int:
    """Of a program whose cases are there; the least, without what a worker does now and then."""
    return min(doors.traffic(KINDS["python"], some)[0] for _ in range(4))


def _large_suite() -> Cases:
    """New each time: a program that prints the sum of the first line's numbers, and much below."""
    some = cases(100)
    draw = random.Random()
    return Cases([
        case.model_copy(update={"input": f"{case.input}{draw.randbytes(_LARGE // 2).hex()}\n"})
        for case in some.cases
    ])  # fmt: skip


def _stopped(doors: Doors, count: int) -> float:
    """Seconds of a program whose first case fails, and ends it; the median of a few."""
    some, seconds = cases(count), []
    for _ in range(9):
        began = time.perf_counter()
        result = doors.judge(KINDS["python"], some, "print('wrong')", stop="first")
        seconds.append(time.perf_counter() - began)
        if result.verdicts != "W" + "S" * (count - 1):
            raise RuntimeError(result.verdicts)
    return statistics.median(seconds)


def _slept(doors: Doors, count: int) -> float:
    """Seconds of a program that only sleeps, on a server that is asked for each case."""
    began = time.perf_counter()
    doors.foreign("import time; time.sleep(0.3)", count)
    return time.perf_counter() - began


def _python_alone(program: str, peer: str, some: Cases) -> dict[str, float]:
    times = range(_SHORT_ONES)
    seconds = statistics.median(_peer(program, peer, KINDS["python"], some) for _ in times)
    return {"python cases/s": len(some.cases) / seconds}


def _peer(program: str, peer: str, kind: Kind, some: Cases, url: str = "") -> float:
    """One run in the peers' environment; the seconds of the call itself."""
    given = {
        "code": kind.new(),
        "language": kind.language,
        "inputs": [case.input for case in some.cases],
        "outputs": [case.expected for case in some.cases],
        "url": url,
    }
    python, contender = environment("judge-peers", _PEERS), _CONTENDERS / program
    found = run_json(python, contender, str(FOLDERS[peer]), env=os.environ, given=given)
    if found["score"] != 1.0:
        raise RuntimeError(f"{program}: {found}")
    return float(found["seconds"])
