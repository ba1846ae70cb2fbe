"""A command in a real terminal of 80 by 24, with the kernel's own Ctrl-C.

with Terminal(["penstock", "top"], env) as terminal:
    terminal.until("QUEUE")
    terminal.press(Terminal.CTRL_C)
    assert terminal.ends() == 0
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.harness import leash
from tests.harness.servers import until

_PIECE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([^\x1b\r\n])")
# The session's leader, whose terminal this is; then it becomes the command.
_LEAD = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); \
os.execvp(sys.argv[1], sys.argv[1:])"


class Terminal:
    """The terminal's other end."""

    CTRL_C = b"\x03"

    def __init__(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str],
        *,
        rows: int = 24,
        cols: int = 80,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.process = leash.start(
            [sys.executable, "-I", "-S", "-c", _LEAD, *command],
            env={**env, "TERM": "xterm-256color"}, start_new_session=True,
            stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        # Before that a Ctrl-C would reach nobody.
        until(lambda: os.tcgetpgrp(self._ours) == self.process.pid, "it to have its terminal")
        os.close(theirs)
        self._said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """All that came to the screen so far, with the codes that move the cursor."""
        return self._said.decode(errors="replace")

    def until(self, words: str) -> None:
        def shown() -> bool:
            assert self.process.poll() is None or words in self.said, self.said
            return words in self.said

        until(shown, f"{words!r} on the screen", within=100)

    @property
    def screen(self) -> list[str]:
        """What is to be seen, row by row, after a program that only goes to a row, clears and
        writes."""
        rows, at, col = dict[int, list[str]](), 1, 0
        for found in _PIECE.finditer(self.said):
            code, letter, one = found.groups()
            if one:
                row = rows.setdefault(at, [])
                row[col:] = [*[" "] * (col - len(row)), one, *row[col + 1 :]]
                col += 1
            elif letter == "H":
                at, col = int(code.partition(";")[0] or 1), int(code.partition(";")[2] or 1) - 1
            elif letter == "K":
                del rows.setdefault(at, [])[col:]
            elif letter == "J" or code == "?1049":
                rows.clear()
        return [
            "".join(rows.get(number, [])).rstrip() for number in range(1, max(rows, default=0) + 1)
        ]

    def shows(self, *words: str) -> None:
        """Wait until all of these are to be seen at once."""

        def seen() -> bool:
            shown = "\n".join(self.screen)
            assert self.process.poll() is None, shown
            return all(word in shown for word in words)

        until(seen, f"{words} on the screen", within=100)

    def resize(self, rows: int, cols: int) -> None:
        """As a window's border is drawn: the kernel says it to who is in the foreground."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def press(self, key: bytes) -> None:
        os.write(self._ours, key)

    def ends(self, within: float = 90.0) -> int:
        """Its exit status; then `said` is all it said."""
        code: int = self.process.wait(within)
        self._reader.join(within)
        return code

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # nobody has the other end any more
                return
            if not part:
                return
            self._said += part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(100)
        os.close(self._ours)
