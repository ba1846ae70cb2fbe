"""Who really holds a permit: a witness that knows nothing of the gate's keys.

Each holder says here that it holds, and that it stops, and hears that this was seen
before it lets go of the permit; a SIGKILL is seen as its connection ends. So whoever is
present holds, or was killed a moment ago. A holder also says whether it was told that
its permit was lost: after it stopped, so that no loss while it was present goes unsaid.
"""

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

WITHIN = 100.0


@dataclass(frozen=True)
class Crowd:
    """Those present as one more arrived."""

    holders: list[dict[str, Any]]

    @property
    def size(self) -> int:
        return len(self.holders)

    @property
    def newest_fence(self) -> int:
        return max(holder["fence"] for holder in self.holders)


@contextmanager
def seen(address: str, permit: Any, **facts: Any) -> Iterator[None]:
    """In the holder's process: be seen for the length of the block."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        _say(line, {"fence": permit.fence, **facts})
        try:
            yield
        finally:
            _say(line, {})
            _say(line, {"lost": permit.lost})


def _say(line: socket.socket, facts: dict[str, Any]) -> None:
    line.sendall(json.dumps(facts).encode() + b"\n")
    assert line.recv(1) == b"\n"


class Observer:
    """`with Observer(folder) as observer: …; observer.crowds`"""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "observer.sock")
        self.crowds: list[Crowd] = []
        self.arrivals: list[dict[str, Any]] = []
        """What each holder said of itself, in the order of arrival, and `seen_at`, `left_at`."""
        self._lines: dict[socket.socket, dict[str, Any]] = {}
        self._present: dict[socket.socket, dict[str, Any]] = {}
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @property
    def present(self) -> list[dict[str, Any]]:
        with self._changed:
            return list(self._present.values())

    def wait_until(self, holds: Callable[[Self], bool]) -> None:
        deadline = time.monotonic() + WITHIN
        with self._changed:
            while not holds(self):
                assert self._changed.wait(deadline - time.monotonic()), "waited in vain"

    def __enter__(self) -> Self:
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(self.address)
        self._door.listen(1024)
        self._selector.register(self._door, selectors.EVENT_READ)
        self._stop, self._stopping = socket.socketpair()
        self._selector.register(self._stopping, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.close()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            cast(socket.socket, key.fileobj).close()
        self._selector.close()

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select():
                line: Any = key.fileobj
                if line is self._stopping:
                    return
                if line is self._door:
                    self._selector.register(line.accept()[0], selectors.EVENT_READ)
                else:
                    self._hear(line)

    def _hear(self, line: socket.socket) -> None:
        said = _receive(line)
        with self._changed:
            if said:
                self._heard(line, json.loads(said))
            if not said or not _answer(line):
                self._left(line)
                self._lines.pop(line, None)
                self._selector.unregister(line)
                line.close()
            self._changed.notify_all()

    def _heard(self, line: socket.socket, facts: dict[str, Any]) -> None:
        if "fence" in facts:
            holder = {**facts, "seen_at": time.time()}
            self._lines[line] = self._present[line] = holder
            self.arrivals.append(holder)
            self.crowds.append(Crowd(list(self._present.values())))
        elif facts:
            self._lines[line].update(facts)
        else:
            self._left(line)

    def _left(self, line: socket.socket) -> None:
        if (holder := self._present.pop(line, None)) is not None:
            holder["left_at"] = time.time()


def _answer(line: socket.socket) -> bool:
    try:
        line.sendall(b"\n")
    except OSError:
        return False  # killed in this moment
    return True


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except OSError:
        return b""  # killed with our answer unread
