"""A training that grades real programs by a queue, and a sandbox that is killed meanwhile."""

import asyncio
import contextlib
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ground.breaker import State, read_state
from tests.harness import commands
from tests.harness.servers import free_port, until, url_of
from tests.penstock.commands import clean
from worker.hosts.grading import Grader

TRUTH = {"inputs": ["3"], "outputs": ["9"]}
GROUPS, SAMPLES = 4, 4  # programs of a step: half of them are right


class SandboxServer:
    """`penstock sandbox serve` on one port, killed and started again."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        words = ["sandbox", "serve", "--port", str(self.port)]
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True,
        }  # fmt: skip
        self._process = commands.start(words, env=clean(), **pipes)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == self.url

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextlib.contextmanager
def fleet(client: Any, *options: str, **settings: str) -> Iterator[SandboxServer]:
    """A worker of the queue `code`, whose programs run at that server."""
    sandbox = SandboxServer()
    sandbox.start()
    given = {"PENSTOCK_SANDBOX_FUSION_URL": sandbox.url} | settings
    words = ["--redis-url", url_of(client), "worker", "code", "--concurrency", "8", *options]
    # It may log for minutes: a pipe that nobody reads would stop it.
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    worker = commands.start(words, env=clean() | given, **quiet)
    try:
        until(lambda: client.scard("rq:workers:code") == 1, "the worker")
        yield sandbox
    finally:
        worker.terminate()
        worker.wait(100)
        sandbox.kill()


@dataclass
class Watch:
    """What the breaker of the queue, or of its gate, was."""

    client: Any
    key: str
    reasons: set[str] = field(default_factory=set)

    def state(self) -> State:
        paused, why = self.client.hmget(self.key, "paused", "paused_why")
        self.reasons |= {why.decode()} if why else set()
        return read_state(paused and paused.decode())

    async def until(self, *states: State) -> float:
        """Seconds until it is in one of them."""
        began = time.monotonic()
        await asyncio.to_thread(until, lambda: self.state() in states, f"{states}", 100)
        return time.monotonic() - began


@dataclass
class Training:
    """Steps of groups, each program with a truth that is known beforehand."""

    grader: Grader
    counts: Counter[str] = field(default_factory=Counter)
    steps: list[float] = field(default_factory=list)  # when each was made
    false: list[Any] = field(default_factory=list)  # what was trained on, and is not so

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await asyncio.gather(*(self._group() for _ in range(GROUPS)))
            self.steps.append(time.monotonic())

    def has_stepped_since(self, moment: float) -> bool:
        return bool(self.steps) and self.steps[-1] > moment

    async def _group(self) -> None:
        number = self.counts["programs"]
        self.counts["programs"] += SAMPLES
        truths = [float(sample % 2) for sample in range(SAMPLES)]
        grades = await asyncio.gather(
            *(
                self.grader.grade(f"```python\nprint(3 * {3 * int(right)})  # {number}\n```", TRUTH)
                for right in truths
            )
        )
        self.counts["masked"] += sum(grade.masked for grade in grades)
        known = [(grade.value, right) for grade, right in zip(grades, truths, strict=True)
                 if not grade.masked]  # fmt: skip
        self.counts["trained"] += len(known)
        self.false += [pair for pair in known if pair[0] != pair[1]]


async def trained_through_an_outage(
    client: Any, sandbox: SandboxServer, watch: Watch, before: float, outage: float, after: float
) -> tuple[Training, float, float]:
    """The training; how many of its programs were not known when the breaker opened; and seconds
    from the end of the outage to the breaker's."""
    training, over = Training(Grader(on=url_of(client))), asyncio.Event()
    running = asyncio.create_task(training.run(over))
    try:
        await asyncio.sleep(before)  # a training that runs
        began = time.monotonic()
        await asyncio.to_thread(sandbox.kill)
        await watch.until(State.OPEN)
        left = began + outage - time.monotonic()
        await asyncio.sleep(max(0.0, left))  # an outage has a length
        await asyncio.to_thread(sandbox.start)
        back = time.monotonic()
        closed = await watch.until(State.CLOSED)
        goes_on = partial(training.has_stepped_since, back + after)
        await asyncio.to_thread(until, goes_on, "steps after the outage", after + 100)
    finally:
        over.set()
        async with asyncio.timeout(100):
            await running
    return training, back, closed
