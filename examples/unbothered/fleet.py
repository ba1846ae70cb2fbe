"""The processes of a run, each started again whenever it ends, and what kills them by the clock."""

import contextlib
import functools
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import ground
from examples.unbothered import model, trainer
from ground import EmbeddedServer
from ground.server.keeper import die_with

# Seconds between two kills of each kind; of the trainer, how many there are in a run; and in
# which share of the programs' runs their sandbox is killed.
KILLS = {"worker": 10.0, "gateway": 20.0, "redis": 60.0}
TRAINER_KILLS = 3
SANDBOX_KILLS = 0.05
WORKERS = 2
LEASE = 3.0  # seconds until what a dead process had is given to another
# One thread a process: a sum in another order is another sum.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Service:
    """A process that is started again whenever it ends."""

    def __init__(self, name: str, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.name, self.starts = name, 0
        self._command, self._env = command, env
        self._log = open(folder / f"{name}.log", "ab")  # noqa: SIM115 - as long as the process
        self._stopping, self._lock = False, threading.Lock()
        self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(
            [sys.executable, "-P", *self._command], env=self._env, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, start_new_session=True,
            preexec_fn=functools.partial(die_with, os.getpid()),
        )  # fmt: skip

    def _keep(self) -> None:
        while True:
            if self.process.wait() == 0:
                return
            time.sleep(0.1)
            with self._lock:
                if self._stopping:
                    return
                self._start()

    @property
    def over(self) -> bool:
        """Whether it ended by itself, in order."""
        return self.process.poll() == 0

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        with self._lock:
            self._stopping = True
            self.process.terminate()
        self._keeper.join(30)
        self.process.kill()  # unless it has ended
        self._log.close()


class Training:
    """A trainer, and what kills it."""

    trainer: Service

    def __init__(
        self, folder: Path, seed: int, steps: int, *, rate: float, most_seconds: float
    ) -> None:
        """`rate` times as often as KILLS says; 0: nothing is killed."""
        folder.mkdir(parents=True)
        self.folder, self.kills = folder, Counter[str]()
        self._seed, self._steps, self._rate = seed, steps, rate
        self._most_seconds = most_seconds
        self._due: dict[str, float] = {}
        self._draw = random.Random(seed)
        self._services = list[Service]()
        self._running = contextlib.ExitStack()
        weights = model.fresh(seed)
        self.checkpoint = folder / "checkpoint.npz"
        model.saved(self.checkpoint, weights, model.Adam(weights), {"version": 0})

    def _started(self, name: str, command: list[str], env: dict[str, str]) -> Service:
        service = Service(name, command, self.folder, env)
        self._running.callback(service.stop)
        self._services.append(service)
        return service

    def _written(self, **known: Any) -> None:
        known |= {"seed": self._seed, "steps": self._steps}
        (self.folder / "run.json").write_text(json.dumps(known))

    def run(self) -> float:
        """Until the trainer has ended; seconds."""
        began = time.monotonic()
        due = {kind: began + self._due[kind] for kind in self._due}
        count = round(TRAINER_KILLS * self._rate)
        trainers = sorted({self._steps * (n + 1) // (count + 1) for n in range(count)})
        while not self.trainer.over:
            now = time.monotonic()
            if now - began > self._most_seconds:
                raise TimeoutError(f"the run takes too long; its logs are in {self.folder}")
            for kind in [kind for kind, at in due.items() if at <= now]:
                due[kind] = now + self._due[kind]
                self.kill(kind)
            if trainers and self.done() >= trainers[0]:
                trainers.pop(0)
                time.sleep(self._draw.uniform(0, 1))  # anywhere in the step
                self.kill("trainer")
            time.sleep(0.05)
        return time.monotonic() - began

    def done(self) -> int:
        """Steps that are finished."""
        log = self.folder / "steps.jsonl"
        return len(log.read_bytes().splitlines()) if log.exists() else 0

    def kill(self, kind: str) -> None:
        self._draw.choice([one for one in self._services if kind in one.name]).kill()
        self._note(kind)

    def _note(self, kind: str) -> None:
        self.kills[kind] += 1
        with open(self.folder / "kills.jsonl", "a") as log:
            line = {"what": kind, "at": time.time(), "done": self.done()}
            log.write(json.dumps(line) + "\n")

    def sandboxes(self) -> tuple[int, int]:
        """Runs of programs, and how many of them died with their sandbox."""
        file = self.folder / "sandboxes"
        letters = file.read_bytes() if file.exists() else b""
        return len(letters), letters.count(b"x")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()


class Plain(Training):
    """The control: a trainer alone. `rewards` and `dead` are those of `plain.py`."""

    def __init__(
        self, folder: Path, seed: int, steps: int, *, rewards: str, dead: float = 0.0,
        rate: float = 0.0, most_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(folder, seed, steps, rate=rate, most_seconds=most_seconds)
        self._written(rewards=rewards, dead=dead)
        command = ["-m", "examples.unbothered.plain", str(folder)]
        self.trainer = self._started("trainer", command, _environment())


class Fleet(Training):
    """Redis, an engine, a gateway, workers, and a trainer."""

    def __init__(
        self, folder: Path, seed: int, steps: int, *, ahead: int = 0, rate: float = 0.0,
        most_seconds: float,
    ) -> None:  # fmt: skip
        super().__init__(folder, seed, steps, rate=rate, most_seconds=most_seconds)
        engine, gateway = _free_port(), _free_port()
        self._written(
            ahead=ahead, engine=f"http://127.0.0.1:{engine}", gateway=f"http://127.0.0.1:{gateway}"
        )
        self.redis = EmbeddedServer(folder / "redis", port=_free_port(), say=lambda _: None)
        self._running.callback(self.redis.stop)
        env = _environment() | {
            "PENSTOCK_REDIS_URL": self.redis.url,
            "PENSTOCK_GATEWAY_ENGINES": f"sglang=http://127.0.0.1:{engine}",
            "PENSTOCK_GATEWAY_PORT": str(gateway), "PENSTOCK_SANDBOX": "local",
            "PENSTOCK_JOB_LEASE": str(LEASE), "PENSTOCK_GATEWAY_CALL_LEASE": str(LEASE),
        }  # fmt: skip
        if rate:
            self._due = {kind: every / rate for kind, every in KILLS.items()}
            env |= {
                "PENSTOCK_SANDBOX": "examples.unbothered.sandbox.dying",
                "UNBOTHERED_DEAD": str(SANDBOX_KILLS * rate),
                "UNBOTHERED_DEATHS": str(folder / "sandboxes"),
            }

        def started(name: str, *command: str) -> Service:
            return self._started(name, ["-m", *command], env)

        try:
            started("engine", "examples.unbothered.engine", str(engine), str(self.checkpoint))
            _until(lambda: _answers(engine), "the engine")
            started("gateway", "penstock", "gateway", "serve")
            for n in range(WORKERS):
                started(
                    f"worker-{n}", "penstock", "worker", "code", "--gate", "code",
                    "--gate-limit", "16", "--concurrency", "8",
                )  # fmt: skip
            _until(lambda: _answers(gateway), "the gateway")
            self.trainer = started("trainer", "examples.unbothered.trainer", str(folder))
        except BaseException:
            self._running.close()
            raise

    def kill(self, kind: str) -> None:
        if kind != "redis":
            return super().kill(kind)
        with ground.connect(self.redis.target) as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        return self._note(kind)


def _environment() -> dict[str, str]:
    """Of the user's own, without what is set for another fleet, such as a tenant or a gate."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")
    }
    return inherited | ONE_THREAD | {"PYTHONPATH": str(Path(trainer.__file__).parents[2])}


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _until(said: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 100
    while not said():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} does not come up")
        time.sleep(0.05)
