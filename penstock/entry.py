"""Where the `penstock` command begins: it listens to Ctrl-C before it loads anything."""

import gc
import os
import signal

INTERRUPTED = 130


def main() -> None:
    """The command; see `penstock.cli`."""
    with Loading():
        from penstock.cli import main as run
    run()


class Loading:
    """Ctrl-C ends the process on the spot: while modules load there is nothing to put right,
    and an exception in the middle of one comes out as any other. What they make stays: no
    time is lost on looking for garbage in it, now or later."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, _quit)
        gc.disable()

    def __exit__(self, *_: object) -> None:
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGINT, self._before)


def _quit(number: int, frame: object) -> None:
    os.write(2, b"penstock: interrupted\n")
    os._exit(INTERRUPTED)
