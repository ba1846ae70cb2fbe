"""How long until an embedded server answers, beside the same binary started bare.

What the keeper, its lock and the private configuration cost, on an empty data
directory and on one with 100,000 keys to load.
"""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from redis.exceptions import ConnectionError, ResponseError

from bench.suite import Ratio, Suite
from ground import EmbeddedServer, connect
from ground.server.binary import bundled_server

KEYS = 100_000
BINARY = bundled_server()


def measure(quick: bool) -> Suite:
    home = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    full = home / "full"
    with EmbeddedServer(full, binary=BINARY) as server:
        client = connect(server.target)
        with client.pipeline(transaction=False) as pipe:
            for number in range(KEYS):
                pipe.set(f"key:{number}", "x" * 100)
            pipe.execute()
        client.close()
    return Suite(
        contenders={
            "embedded": lambda: {"empty ms": _embedded(home), "full ms": _embedded(home, full)},
            "bare": lambda: {"empty ms": _bare(home), "full ms": _bare(home, full)},
        },
        rounds=5 if quick else 30,
        conditions={"server": BINARY.name, "keys when full": KEYS},
        ratios=[Ratio("empty ms", "embedded", "bare"), Ratio("full ms", "embedded", "bare")],
        clean_up=lambda: shutil.rmtree(home),
    )


def _embedded(home: Path, folder: Path | None = None) -> float:
    folder = _copied(home, folder)
    began = time.perf_counter()
    server = EmbeddedServer(folder, binary=BINARY)
    client = connect(server.target)
    client.ping()
    taken = time.perf_counter() - began
    client.close()
    server.stop()
    shutil.rmtree(folder)
    return taken * 1000


def _bare(home: Path, folder: Path | None = None) -> float:
    folder = _copied(home, folder)
    socket = folder / "bare.sock"
    began = time.perf_counter()
    process = subprocess.Popen(
        [BINARY, "--port", "0", "--unixsocket", socket, "--dir", folder, "--appendonly", "yes",
         "--save", ""],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    client = connect(f"unix://{socket}")
    while True:
        try:
            client.ping()
            break
        except (ConnectionError, ResponseError):  # not listening yet, or loading
            time.sleep(0.001)
    taken = time.perf_counter() - began
    client.close()
    process.kill()
    process.wait()
    shutil.rmtree(folder)
    return taken * 1000


def _copied(home: Path, folder: Path | None) -> Path:
    copy = Path(tempfile.mkdtemp(dir=home))
    if folder is not None:
        shutil.copytree(folder, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return copy
