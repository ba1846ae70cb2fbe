"""A journal: what one process was about to do, and what came of it, line by line.

A line is in the file when `add` returns, so a SIGKILL leaves a true journal. Its time is the
monotonic clock, which all processes of a machine share.
"""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

Line = dict[str, Any]
STANDSTILL = 3.0  # seconds, of a lease of 6


class Journal:
    """`Journal(folder, "trainer-0").add("took", receipt=…)`"""

    def __init__(self, folder: Path, name: str) -> None:
        file = folder / f"{name}.jsonl"
        if file.exists():  # a kill may have cut the last line
            with file.open("r+b") as kept:
                kept.truncate(kept.read().rfind(b"\n") + 1)
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.add("began", pid=os.getpid())

    def add(self, what: str, **facts: Any) -> None:
        line = {"at": time.monotonic(), "what": what, **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def watch_for_standstill(self) -> None:
        """On a machine with too much to do a process stands still as if it were frozen."""
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        last = time.monotonic()
        while True:
            time.sleep(0.25)
            if (now := time.monotonic()) > last + STANDSTILL:
                self.add("stood still", since=last)
            last = now

    def close(self) -> None:
        os.close(self._file)


def read(folder: Path, name: str) -> list[Line]:
    """Its whole lines."""
    file = folder / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


def names(folder: Path, kind: str) -> list[str]:
    """Of the journals of one kind of process."""
    return sorted(file.stem for file in folder.glob(f"{kind}-*.jsonl"))
