"""How Ctrl-C ends the command while its modules load."""

import gc
import os
import signal

INTERRUPTED = 130


class Loading:
    """While modules load, Ctrl-C ends the process on the spot: nothing needs a cleanup so far,
    and KeyboardInterrupt in the midst of an import may come out as another error. What they
    make stays, so that no time is spent on looking for garbage in it, now or later."""

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
