"""The processes of a run, each started again whenever it ends, and what kills them by the clock."""

import contextlib
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
from typing import Self

import ground
from examples.unbothered import model, trainer
from ground import EmbeddedServer

# Seconds between two kills of each kind, and of the trainer how many there are in a run.
KILLS = {"worker": 10.0, "gateway": 20.0, "redis": 60.0, "sandbox": 3.0}
TRAINER_KILLS = 3
WORKERS = 2
LEASE = 5.0  # seconds until what a dead process had is given to another
# One thread a process: a sum in another order is another sum.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Service:
    """A process that is started again whenever it ends."""

    def __init__(self, name: str, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self.name, self.starts = name, 0
        self._command, self._env = command, env
        self._log = open(folder / f"{name}.log", "ab")  # noqa: SIM115 - as long as the process
        self._stopping = False
        self._start()
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()

    def _start(self) -> None:
        self.starts += 1
        self.process = subprocess.Popen(
            [sys.executable, "-P", *self._command], env=self._env, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def _keep(self) -> None:
        while True:
            code = self.process.wait()
            if self._stopping or code == 0:
                return
            time.sleep(0.1)
            self._start()

    @property
    def over(self) -> bool:
        """Whether it ended by itself, in order."""
        return self.process.poll() == 0

    def kill(self) -> None:
        self.process.kill()

    def stop(self) -> None:
        self._stopping = True
        self.process.terminate()
        self._keeper.join(30)
        self._log.close()


class Fleet:
    """Redis, an engine, a gateway, workers, and a trainer."""

    def __init__(self, folder: Path, seed: int, steps: int, *, most_seconds: float) -> None:
        folder.mkdir(parents=True)
        self.folder, self.kills = folder, Counter[str]()
        self._most_seconds = most_seconds
        engine, gateway = _free_port(), _free_port()
        self._write_down(seed, steps, engine, gateway)
        self.redis = EmbeddedServer(folder / "redis", port=_free_port(), say=lambda _: None)
        env = os.environ | ONE_THREAD | {
            "PENSTOCK_REDIS_URL": self.redis.url,
            "PENSTOCK_GATEWAY_ENGINES": f"sglang=http://127.0.0.1:{engine}",
            "PENSTOCK_GATEWAY_PORT": str(gateway), "PENSTOCK_SANDBOX": "local",
            "PENSTOCK_JOB_LEASE": str(LEASE), "PENSTOCK_GATEWAY_CALL_LEASE": str(LEASE),
            "PYTHONPATH": str(Path(trainer.__file__).parents[2]),
        }  # fmt: skip

        def service(name: str, *command: str) -> Service:
            return Service(name, ["-m", *command], folder, env)

        checkpoint = str(folder / "checkpoint.npz")
        self.services = [service("engine", "examples.unbothered.engine", str(engine), checkpoint)]
        _until(lambda: _answers(engine), "the engine")
        self.services += [
            service("gateway", "penstock", "gateway", "serve"),
            *(
                service(f"worker-{n}", "penstock", "worker", "code", "--gate", "code",
                        "--gate-limit", "16", "--concurrency", "8")
                for n in range(WORKERS)
            ),
        ]  # fmt: skip
        _until(lambda: _answers(gateway), "the gateway")
        self.trainer = service("trainer", "examples.unbothered.trainer", str(folder))

    def _write_down(self, seed: int, steps: int, engine: int, gateway: int) -> None:
        weights = model.fresh(seed)
        file = self.folder / "checkpoint.npz"
        model.saved(file, weights, model.Adam(weights), {"version": 0})
        known = {
            "seed": seed, "steps": steps, "engine": f"http://127.0.0.1:{engine}",
            "gateway": f"http://127.0.0.1:{gateway}",
        }  # fmt: skip
        (self.folder / "run.json").write_text(json.dumps(known))

    def run(self, *, chaos: int | None, steps: int) -> float:
        """Until the trainer has ended; seconds. `chaos` is a seed of what is killed when."""
        began = time.monotonic()
        due = {kind: began + every for kind, every in KILLS.items()} if chaos is not None else {}
        draw = random.Random(chaos)
        trainers = sorted({steps * (n + 1) // (TRAINER_KILLS + 1) for n in range(TRAINER_KILLS)})
        while not self.trainer.over:
            now = time.monotonic()
            if now - began > self._most_seconds:
                raise TimeoutError(f"the run takes too long; its logs are in {self.folder}")
            for kind in [kind for kind, at in due.items() if at <= now]:
                due[kind] = now + KILLS[kind]
                self._kill(kind, draw)
            if due and trainers and self.done() >= trainers[0]:
                trainers.pop(0)
                time.sleep(draw.uniform(0, 1))  # anywhere in the step
                self._kill("trainer", draw)
            time.sleep(0.05)
        return time.monotonic() - began

    def done(self) -> int:
        """Steps that are finished."""
        log = self.folder / "steps.jsonl"
        return len(log.read_bytes().splitlines()) if log.exists() else 0

    def _kill(self, kind: str, draw: random.Random) -> None:
        name = "worker" if kind == "sandbox" else kind
        named = [service for service in [*self.services, self.trainer] if name in service.name]
        if kind == "redis":
            with ground.connect(self.redis.target) as client:
                os.kill(client.info("server")["process_id"], signal.SIGKILL)
        elif kind == "sandbox":
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one just ended
                for child in _children(draw.choice(named).process.pid):
                    os.kill(child, signal.SIGKILL)
        else:
            draw.choice(named).kill()
        self.kills[kind] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for service in [self.trainer, *reversed(self.services)]:
            service.stop()
        self.redis.stop()


def _children(process: int) -> list[int]:
    """Those of a worker start its programs: with them all that run end."""
    threads = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


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
    end = time.monotonic() + 60
    while not said():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} does not come up")
        time.sleep(0.05)
