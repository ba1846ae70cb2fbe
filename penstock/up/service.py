"""A service of `penstock up`: a process that is started again whenever it ends."""

import asyncio
import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from ground import PenstockError
from ground.backoff import backoff
from ground.redis.connect import UNWELL

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
LIVES_WELL = 30.0  # seconds after which an end is an accident, and not one of a row
ENDS_WITHIN = 25.0
_SETTING_REFUSED = 2


class ServiceFailed(PenstockError):
    """A service cannot run as things are set up."""


@dataclass
class Service:
    """A service: what is run, and how it stands."""

    name: str
    arguments: list[str]
    env: dict[str, str]
    log: Path
    say: Callable[[str], None]
    url: str = ""
    listens: Callable[[str], Awaitable[bool]] | None = None
    """Of a worker: whether the one of that name is at work."""
    changed: Callable[["Service"], None] = lambda _: None
    """Called whenever its state or its process is another."""
    called: str = ""
    """Its name; never the same twice, as RQ refuses that of a worker which died a moment ago."""
    state: str = "starting"
    restarts: int = 0
    pid: int = 0
    since: float = field(default_factory=time.monotonic)
    _process: asyncio.subprocess.Process | None = None
    _said_before: int = 0
    _ending: bool = False
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def keep(self) -> None:
        """Run it until `end`; an end that nobody asked for is said, and made good."""
        short_lives, was_ready = 0, False
        while not self._ending:
            async with self._starting:
                process = await self._start()
            self.changed(self)
            if await self._becomes_ready(process):
                was_ready = True
                self.state = "up"
                self.changed(self)
            code = await process.wait()
            if self._ending:
                break
            if code == _SETTING_REFUSED and not was_ready:
                raise ServiceFailed(f"{self.name}: {self._last_words()}")
            if time.monotonic() - self.since > LIVES_WELL:
                short_lives = 0
            self.state, self.pid = "restarting", 0
            self.restarts += 1
            self.changed(self)
            short_lives += 1
            pause = backoff(short_lives, FIRST_PAUSE, LONGEST_PAUSE)
            self.say(f"{self.name} ended ({_how(code)}); restart in {pause:g} s")
            await asyncio.sleep(pause)
        self.state, self.pid = "ended", 0

    async def end(self) -> None:
        """End in order; after a time, at once."""
        self._ending = True
        async with self._starting:  # what is about to be is ended too
            pass
        if self._process is not None and self._process.returncode is None:
            self.state = "ending"
            await self._stop(self._process)

    def kill(self) -> None:
        """Kill it at once."""
        self._ending = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _start(self) -> asyncio.subprocess.Process:
        arguments = self.arguments
        if self.listens is not None:
            # A name for each start: a former child is not taken for this one.
            self.called = f"{self.name}-{secrets.token_hex(4)}"
            arguments = [*arguments, "--name", self.called]
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            # -P: what is in the working folder, a worker/ or a redis.py, is not imported.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "penstock.up.child", *arguments, env=self.env,
                stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for `up`, which then ends all in order
            )  # fmt: skip
        self.pid, self.since, self.state = self._process.pid, time.monotonic(), "starting"
        return self._process

    async def _becomes_ready(self, process: asyncio.subprocess.Process) -> bool:
        """However long that takes; False if it ends before."""
        async with httpx.AsyncClient(timeout=2.0, trust_env=False) as client:
            while process.returncode is None:
                with contextlib.suppress(httpx.TransportError, *UNWELL):
                    if await self._is_well(client):
                        return True
                await asyncio.sleep(0.1)
        return False

    async def _is_well(self, client: httpx.AsyncClient) -> bool:
        if self.listens is not None:
            return await self.listens(self.called)
        answer = await client.get(f"{self.url}/healthz")
        return answer.status_code == 200 and _pid_in(answer) == self.pid

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), ENDS_WITHIN)
        except TimeoutError:
            process.kill()
            await process.wait()

    def _last_words(self) -> str:
        said = self.log.read_bytes()[self._said_before :]
        lines = said.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("penstock: ") if lines else "it printed nothing"


def _pid_in(answer: httpx.Response) -> int | None:
    """The pid of the process that answered; None if that is not a server of Penstock."""
    try:
        said = answer.json()
    except ValueError:
        return None
    return said.get("pid") if isinstance(said, dict) else None


def _how(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
