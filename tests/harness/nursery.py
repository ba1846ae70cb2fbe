"""Where the children of `killing` are forked: a process that has imported what scenarios need.

A new interpreter for each would take most of a second of a processor; a fork takes
milliseconds. It is a process of its own, with one thread, so that forking is safe there.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tests.harness import leash

ROOT = Path(__file__).parents[2]
IMPORTED = [
    "fakeredis", "httpx", "hypothesis", "pytest", "rq",
    "ground", "limiter", "worker", "worker.jobs", "worker.concurrent.worker",
    "worker.queue.code_queue", "jail.sessions", "buffer",
]  # fmt: skip

# A test's own variables are its children's, and not the nursery's, which outlives the test.
_OF_THE_RUN = dict(os.environ)


class Born:
    """A child of the nursery that has imported these modules."""

    def __init__(
        self,
        spec: dict[str, Any],
        reporting: int,
        *,
        streams: Sequence[int] = (1, 2),
        environment: Mapping[str, str] | None = None,
        imported: Sequence[str] = IMPORTED,
    ) -> None:
        """`streams`: what it prints to, and its errors; then, if any, what it reads."""
        self._returncode: int | None = None
        self._ended, ending = os.pipe()
        spec = spec | {"environment": dict(os.environ if environment is None else environment)}
        try:
            nursery = _nursery(os.getpid(), tuple(imported))
            self.pid = nursery.fork(spec, [reporting, ending, *streams])
        finally:
            os.close(ending)

    def fileno(self) -> int:
        """Readable when it has ended."""
        return self._ended

    def send_signal(self, number: signal.Signals) -> None:
        if not self.has_ended(0):  # else the number may be another's by now
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def await_stop(self) -> None:
        """Until it is stopped, or has ended."""
        while not self.has_ended(0.002):
            with contextlib.suppress(OSError):  # it is gone
                if Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2][0] == "T":
                    return

    def wait(self, within: float | None = None) -> int:
        """Its exit code, once it has ended; of one that a signal ended: less than zero."""
        if not self.has_ended(within):
            raise TimeoutError(f"process {self.pid} has not ended within {within} s")
        assert self._returncode is not None
        return self._returncode

    def has_ended(self, within: float | None) -> bool:
        if self._returncode is not None:
            return True
        if not select.select([self._ended], [], [], within)[0]:
            return False
        status = os.read(self._ended, 16)
        assert status, "the nursery is gone"
        self._returncode = os.waitstatus_to_exitcode(int(status))
        os.close(self._ended)
        return True


class _Nursery:
    """The process, as it is seen from the test run."""

    def __init__(self, imported: Sequence[str]) -> None:
        self._one_at_a_time = threading.Lock()
        self._asks, asked = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with asked:
            self._process = leash.start(
                [sys.executable, "-m", "tests.harness.nursery", str(asked.fileno()), *imported],
                cwd=ROOT, stdin=subprocess.DEVNULL, pass_fds=(asked.fileno(),),
                start_new_session=True, env=_OF_THE_RUN,
            )  # fmt: skip
        atexit.register(self._close)

    def _close(self) -> None:
        """Its children, if any are left, end with it."""
        self._process.kill()
        self._process.wait()
        self._asks.close()

    def fork(self, spec: dict[str, Any], files: list[int]) -> int:
        words = json.dumps(spec).encode()
        with self._one_at_a_time:
            socket.send_fds(self._asks, [words], files)
            return int(self._asks.recv(16))


@cache
def _nursery(_: int, imported: tuple[str, ...]) -> _Nursery:
    """That of this process; a fork of it has one of its own."""
    return _Nursery(imported)


def _until_born(asked: socket.socket) -> tuple[dict[str, Any], int]:
    """Fork whenever asked, and tell how the children end. Returns in each child: what it is to
    do, and where it reports."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told = dict[int, int]()
    while True:
        ready, _, _ = select.select([asked.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_who_ended(told)
        if asked.fileno() in ready:
            words, files, _, _ = socket.recv_fds(asked, 1 << 20, 5)
            if not words:
                sys.exit()
            nursery = os.getpid()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for kept in (asked.detach(), woken, wakes, *told.values()):
                    os.close(kept)
                return _begin(nursery, words, files)
            asked.send(str(pid).encode())
            reporting, told[pid], *streams = files
            for passed_on in (reporting, *streams):
                os.close(passed_on)


def _tell_who_ended(told: dict[int, int]) -> None:
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            ending = told.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # nobody asks any more
                os.write(ending, str(status).encode())
            os.close(ending)


def _begin(nursery: int, words: bytes, files: list[int]) -> tuple[dict[str, Any], int]:
    """A child becomes what a process that was started anew would be."""
    leash.fasten(nursery)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which a run under nohup ignores
    spec = json.loads(words)
    os.environ.clear()
    os.environ.update(spec.pop("environment"))
    reporting, ending, *streams = files
    for stream, number in zip(streams, (1, 2, 0), strict=False):
        os.dup2(stream, number)
    for used in (ending, *streams):
        os.close(used)
    # Python's own streams keep what the nursery's were: that they could be searched, say.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", 1, closefd=False)  # noqa: SIM115 - by lines, as at a terminal
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    return spec, reporting


def _end(exit_code: int) -> NoReturn:
    """As an interpreter ends, but for the last: it would take each of its objects to pieces, and
    so copy all that the nursery shares with it, which costs twenty times what a fork does."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


if __name__ == "__main__":
    gc.disable()  # what is loaded stays: nothing of it is garbage
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()
    gc.enable()
    from tests.harness import doomed  # by its own name, which is how scenarios import it

    exit_code: Any = 0
    try:
        doomed.main(*_until_born(socket.socket(fileno=int(sys.argv[1]))))
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        exit_code = end.code or 0
    _end(exit_code)
