"""The processes of a run, and how each kind of disturbance is done to them.

Redis (a primary, a replica, a Sentinel) ← proxy ← workers, gateways, buffer servers,
                                                   trainers, generators
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self

import httpx

from tests.harness import commands, leash
from tests.harness.clock import SEEN_WITHIN, Clock, library
from tests.harness.nursery import ROOT
from tests.harness.proxy import Proxy
from tests.harness.remains import processes_named
from tests.harness.sentinel import SentinelPair
from tests.harness.servers import PrivateRedis, free_port, until
from tests.outside.releases import Release
from tests.proof import setting
from tests.proof.journal import Journal
from tests.proof.schedule import CLOCKS, Disturbance

PLAYERS = Path(__file__).parent
ENGINE = ROOT / "tests/gateway/scripted/sglang.py"
HERE = Path(sys.executable).parent
OF_BOTH = ("worker", "buffer", "client")  # half of them may be of an older release
RQ = ["worker", "--worker-class", "worker.ConcurrentWorker",
      "--serializer", "rq.serializers.JSONSerializer"]  # fmt: skip


class Service:
    """One process; it is started again after it was killed."""

    def __init__(
        self, name: str, start: Callable[[], "subprocess.Popen[Any]"], clock: Clock | None = None
    ) -> None:
        self.name, self._begin, self.clock = name, start, clock
        self.guard = threading.Lock()  # one disturbance at a time
        self.over = False  # it was told to end
        self._start()

    def _start(self) -> None:
        self.born, self.process = time.monotonic(), self._begin()

    def kill(self, seconds: float) -> None:
        self.stop()
        time.sleep(seconds)  # it is dead for so long
        self._start()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def done(self) -> bool:
        """Whether it came to its own end, in order."""
        return self.process.poll() == 0

    def revive(self) -> None:
        """Start it again, though no disturbance ended it."""
        with self.guard:
            if self.process.poll():
                self._start()

    def freeze(self, seconds: float) -> None:
        leash.freeze(self.process)
        time.sleep(seconds)  # it is frozen for so long
        self.process.send_signal(signal.SIGCONT)

    def jump(self, seconds: float) -> None:
        assert self.clock is not None
        self.clock.jump(seconds)
        time.sleep(SEEN_WITHIN)  # it has looked at its clock


class Fleet:
    """`with Fleet(folder, seed, counts, clocked, older) as fleet: fleet.strike(disturbance)`

    `clocked`: whose clocks will jump; Redis' own may be among them.
    `older`: a release that half of the workers, buffer servers and clients have.
    """

    def __init__(
        self, folder: Path, seed: int, counts: dict[str, int],
        clocked: Collection[str], older: Release | None,
    ) -> None:  # fmt: skip
        self.folder, self.services = folder, dict[str, Service]()
        self._clocked = set(clocked) if library() else set()
        self._older = older
        self._stack = contextlib.ExitStack()
        self._journal = Journal(folder, "fleet")
        self._redis_guard = threading.Lock()
        try:
            self._put_together(seed, counts)
        except BaseException:
            self.close()
            raise

    def _put_together(self, seed: int, counts: dict[str, int]) -> None:
        self.disk = self._stack.enter_context(_small_disk(self.folder / "disk"))
        self.clock = self._clock("redis")
        self.redis = self._stack.enter_context(
            SentinelPair(self.disk or self.folder / "redis", environment=_variables(self.clock))
        )
        self.proxy = self._stack.enter_context(Proxy(self.redis.primary.target))
        url = f"redis://127.0.0.1:{self.proxy.target.nodes[0][1]}/0"
        ports = {role: [free_port() for _ in range(counts[role])] for role in _SERVERS}
        urls = {role: [f"http://127.0.0.1:{port}" for port in ports[role]] for role in ports}
        run = setting.Run(seed, url, urls["gateway"], urls["buffer"], urls["engine"])
        run.write(self.folder)
        asyncio.run(setting.prepare(self.server.url))
        named = ",".join(f"sglang={engine}" for engine in run.engines)
        environment = {
            **os.environ, **setting.ENVIRONMENT, "PENSTOCK_REDIS_URL": url,
            "PENSTOCK_GATEWAY_ENGINES": named, "PYTHONPATH": str(ROOT),
            "PENSTOCK_LOCAL_SANDBOXES": str(self.folder / "boxes"),
        }  # fmt: skip
        for role, words in {
            "engine": ["python", ENGINE, "{port}", '{{"version": 0}}'],
            "gateway": ["penstock", "gateway", "serve", "--port", "{port}"],
            "buffer": ["penstock", "buffer", "serve", "--port", "{port}"],
            "worker": ["rq", *RQ, "--url", url, "code"],
            "trainer": ["python", PLAYERS / "trainer.py", self.folder, "{name}"],
            "generator": ["python", PLAYERS / "generator.py", self.folder, "{name}"],
            "client": ["python", PLAYERS / "client.py", self.folder, "{name}"],
        }.items():
            for n in range(counts.get(role, 0)):
                port = ports[role][n] if role in ports else 0
                name = f"{role}-{n}"
                said = [str(word).format(port=port, name=name) for word in words]
                older = self._older if role in OF_BOTH and n >= counts[role] / 2 else None
                self._add(name, said, environment, older)
            for port in ports.get(role, ()):
                until(lambda at=port: _answers(at), f"{role} at {port}")  # type: ignore[misc]

    def _add(
        self, name: str, words: list[str], environment: dict[str, str], older: Release | None
    ) -> None:
        clock = self._clock(name)
        environment = environment | _variables(clock)
        if older:  # its own packages go before this tree, which has the tests
            environment["PYTHONPATH"] = os.pathsep.join(map(str, (older.packages, ROOT)))

        def begin() -> "subprocess.Popen[Any]":
            with (self.folder / f"{name}.log").open("ab") as log:
                how: dict[str, Any] = {"cwd": self.folder, "stdout": log, "stderr": log}
                if older or clock:  # what is forked has its libraries already
                    program = (older.bin if older else HERE) / words[0]
                    return leash.start([program, *words[1:]], env=environment, **how)
                return _forked(words, env=environment, **how)

        self.services[name] = service = Service(name, begin, clock)
        self._stack.callback(service.stop)

    def _clock(self, name: str) -> Clock | None:
        if name not in self._clocked:
            return None
        clock = Clock(self.folder / "clocks" / name)
        self._stack.callback(clock.close)
        return clock

    @property
    def server(self) -> PrivateRedis:
        """The primary: where the observer looks, past the proxy."""
        return self.redis.primary

    @property
    def behind(self) -> float:
        """By how many seconds leases of an earlier time end later, as Redis' clock went back."""
        return self.clock.behind if self.clock else 0.0

    @property
    def absent(self) -> dict[str, str]:
        """Kinds of disturbances that this machine cannot do, and why."""
        return {
            **({} if self.disk else {"disk full": "only root may mount a disk"}),
            **({} if library() else dict.fromkeys(CLOCKS, "libfaketime is not installed")),
        }

    def strike(self, what: Disturbance) -> None:
        """Do it to its end, after any other at the same place; write down from when to when."""
        service = self.services.get(what.target)
        with service.guard if service else self._redis_guard:
            facts = {"kind": what.kind, "target": what.target}
            self._journal.add("strikes", seconds=what.seconds, **facts)
            if service:
                _TO_A_PROCESS[what.kind](service, what.seconds)
            else:
                _STRIKES[what.kind](self, what.seconds)
            self._journal.add("struck", **facts)

    def failed(self) -> list[tuple[str, float]]:
        """Which processes have failed with no disturbance at work on them, and at which age; a
        second after their start at the earliest, as a supervisor waits a moment."""
        found = []
        for service in self.services.values():
            if service.guard.acquire(blocking=False):
                try:
                    age = time.monotonic() - service.born
                    if service.process.poll() and not service.over and age > 1:
                        found.append((service.name, age))
                finally:
                    service.guard.release()
        return found

    def end(self, *roles: str) -> None:
        """End processes of these roles in order, with SIGTERM."""
        ending = [each for each in self.services.values() if each.name.rpartition("-")[0] in roles]
        for service in ending:
            service.over = True
            service.process.terminate()
        for service in ending:
            service.process.wait(100)

    def close(self) -> None:
        self._stack.close()
        for pid in self.hub():
            os.kill(pid, signal.SIGKILL)
        self._journal.close()

    def hub(self) -> list[int]:
        """The processes that keep the sandboxes of this run."""
        return processes_named(str(self.folder / "boxes"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is done to Redis, to the way there, and to the hub of sandboxes

    def _kill_redis(self, seconds: float) -> None:
        self.server.kill()
        time.sleep(seconds)  # it is away for so long
        self.server.start()
        self.redis.heal()

    def _freeze_redis(self, seconds: float) -> None:
        self.server.freeze()
        time.sleep(seconds)
        self.server.thaw()

    def _fail_over(self, _: float) -> None:
        """All that was acknowledged is at the replica: the promise is about what it knew."""
        self.proxy.freeze("commands")
        self.redis.replica.until_in_step(self.server)
        self.redis.kill_primary()
        self.proxy.upstream = self.server.target
        self.proxy.cut()
        self.proxy.thaw()
        self.redis.heal()

    def _hold_up(self, seconds: float) -> None:
        self.proxy.freeze()
        time.sleep(seconds)
        self.proxy.thaw()

    def _delay(self, seconds: float) -> None:
        self.proxy.delay(0.03)
        time.sleep(seconds)
        self.proxy.delay(0.0)

    def _lose_replies(self, _: float) -> None:
        self.proxy.lose_replies(10)

    def _kill_hub(self, _: float) -> None:
        for pid in self.hub():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _fill_disk(self, seconds: float) -> None:
        assert self.disk is not None
        ballast, free = self.disk / "ballast", os.statvfs(self.disk)
        with ballast.open("wb") as file, contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        time.sleep(seconds)  # it is full for so long
        ballast.unlink()
        until(self._has_room, "room on the disk")
        # A promoted replica of Valkey 9.1.2 pads its file with zeros when a write was short.
        self.server.ask("BGREWRITEAOF")
        until(self._is_rewritten, "a whole file")
        self.redis.replica.kill()  # it may have ended itself; its file is as bad
        self.redis.replica.lose_data()
        self.redis.heal()

    def _move_clock(self, seconds: float) -> None:
        assert self.clock is not None
        self.clock.jump_of(self.server, seconds)

    def _has_room(self) -> bool:
        return bool(self.server.ask("INFO", "persistence")["aof_last_write_status"] == "ok")

    def _is_rewritten(self) -> bool:
        now = self.server.ask("INFO", "persistence")
        return not (now["aof_rewrite_in_progress"] or now["aof_rewrite_scheduled"])


_SERVERS = ("engine", "gateway", "buffer")
_STRIKES: dict[str, Callable[[Fleet, float], None]] = {
    "redis killed": Fleet._kill_redis, "redis frozen": Fleet._freeze_redis,
    "failover": Fleet._fail_over, "cut": lambda fleet, _: fleet.proxy.cut(),
    "replies lost": Fleet._lose_replies, "held up": Fleet._hold_up, "delayed": Fleet._delay,
    "hub killed": Fleet._kill_hub, "disk full": Fleet._fill_disk,
    "clock forward": lambda fleet, root: fleet._move_clock(root**3),
    "clock back": lambda fleet, root: fleet._move_clock(-(root**3)),
}  # fmt: skip
_TO_A_PROCESS: dict[str, Callable[[Service, float], None]] = {
    "kill": Service.kill, "freeze": Service.freeze,
    "clock forward": lambda service, root: service.jump(root**3),
    "clock back": lambda service, root: service.jump(-(root**3)),
}  # fmt: skip


def _variables(clock: Clock | None) -> dict[str, str]:
    return clock.environment if clock else {}


def _forked(words: list[str], **how: Any) -> "subprocess.Popen[Any]":
    program, *rest = words
    if program == "penstock":
        return commands.start(rest, **how)
    return commands.start_program([str(HERE / "rq"), *rest] if program == "rq" else rest, **how)


def _answers(port: int) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code < 500
    return False


@contextlib.contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of its own for Redis, which can be filled. Only root may mount one: else None."""
    folder.mkdir(parents=True)
    size = ["mount", "-t", "tmpfs", "-o", "size=3g", "penstock-proof", str(folder)]
    if os.getuid() or subprocess.run(size, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
