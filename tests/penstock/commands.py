"""The `penstock` command as a process, and what processes it leaves."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.harness import leash
from tests.harness.servers import url_of

PENSTOCK = Path(sys.executable).with_name("penstock")
HERE = ("--sandbox", "local")
CHORES = (*HERE, "--allow", "tests.worker.concurrent.chores.*")


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return subprocess.Popen(
        [PENSTOCK, *arguments],
        env=clean | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    process = start(*arguments, **env)
    out, err = process.communicate(timeout=100)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence on stderr of a command that was refused."""
    assert (result.returncode, result.stdout) == (2, ""), result
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("penstock: ")
    return sentence.removeprefix("penstock: ")


def processes_of(folder: Path) -> list[str]:
    return [words for _, words in processes_with(folder)]


def processes_with(folder: Path) -> list[tuple[str, str]]:
    """Command lines and environments of live processes that name this folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                found.append((entry.name, (entry / "cmdline").read_text()))
    return [(pid, words) for pid, words in found if words]


def penstock_worker(client: Any, *options: str, **environment: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "penstock", "--redis-url", url_of(client), "worker", *options]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return leash.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean | environment
    )
