"""Where the `penstock` command begins: it listens to Ctrl-C before it loads anything."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """The command; see `penstock.cli`."""
    with loading():
        from penstock.cli import main as run
    run()


@contextmanager
def loading() -> Iterator[None]:
    """Ctrl-C ends the process on the spot: while modules load there is nothing to put right,
    and an exception in the middle of one comes out as any other."""
    before = signal.signal(signal.SIGINT, _quit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _quit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"penstock: interrupted\n")
    os._exit(INTERRUPTED)
