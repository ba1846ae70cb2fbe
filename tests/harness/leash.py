"""Processes that cannot outlive the test run, even when pytest itself is SIGKILLed.

On Linux the kernel kills a leashed process when the *thread* that started it ends.
So all are started by one thread, which lives as long as the test run does.
Run as `python leash.py <parent pid> <command…>`: fastens the leash and becomes the command.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any


def start(command: Sequence[str | Path], **options: Any) -> "subprocess.Popen[Any]":
    """`subprocess.Popen(command, **options)`, on the leash."""
    leash = [sys.executable, "-I", "-S", __file__, str(os.getpid())]
    words = [*leash, *map(str, command)]
    return _starter(os.getpid()).submit(lambda: subprocess.Popen(words, **options)).result()


def freeze(process: "subprocess.Popen[Any]") -> None:
    """SIGSTOP, and stopped when this returns (or it has ended)."""
    process.send_signal(signal.SIGSTOP)
    try:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    except ChildProcessError:  # another process is its parent: there is no event to wait for
        while _state(process.pid) not in "TtZX":
            time.sleep(0.001)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except FileNotFoundError:
        return "X"


@cache
def _starter(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix=f"leash-{pid}")


def fasten(parent: int) -> None:
    """To this process, which that parent started."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the leash was fastened
        os._exit(1)


if __name__ == "__main__":
    fasten(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
