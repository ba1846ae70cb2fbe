"""A terminal: its keys by name, and lines drawn on it. It is left as it was found.

Plain escape sequences that every terminal of today knows, so that it works over ssh and in tmux;
only lines that changed are sent.
"""

import asyncio
import codecs
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from rich.cells import cell_len

from penstock.top.paper import Paper
from penstock.top.screen import Line

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"  # another screen, no cursor, no wrapping
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_ESCAPE_ALONE = 0.1  # seconds without the rest of a sequence
_SEQUENCES = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "Z": "back-tab",
    "1~": "home", "4~": "end", "5~": "page-up", "6~": "page-down", "7~": "home", "8~": "end",
}  # fmt: skip
_KEYS = {
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x04": "page-down", "\x15": "page-up", "\x0c": "redraw", "\x06": "page-down",
    "\x02": "page-up",
}  # fmt: skip
_COLOURS = {"bad": "\x1b[1;31m", "warn": "\x1b[33m", "well": "\x1b[32m"}
_PLAIN = {
    "bad": "\x1b[1m", "heading": "\x1b[1m", "dim": "", "chosen": "\x1b[7m", "title": "\x1b[1m",
}  # fmt: skip
_END = "end of keys"


class Keys:
    """Bytes of a terminal become names of keys; others are the character itself."""

    def __init__(self, encoding: str) -> None:
        self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        self._rest = ""

    @property
    def begun(self) -> bool:
        """Whether an escape sequence has begun, or Escape was pressed."""
        return bool(self._rest)

    def feed(self, said: bytes) -> list[str]:
        """The keys that are whole by now."""
        self._rest += self._decoder.decode(said)
        found = []
        while self._rest and (taken := self._one()):
            key, length = taken
            self._rest = self._rest[length:]
            if key:
                found.append(key)
        return found

    def alone(self) -> list[str]:
        """What was begun was Escape, with what came after it."""
        rest, self._rest = self._rest[1:], ""
        return ["escape", *self.feed(rest.encode())]

    def _one(self) -> tuple[str, int] | None:
        first = self._rest[0]
        if first != "\x1b":
            named = _KEYS.get(first, first)
            return (named if len(named) > 1 or named.isprintable() else ""), 1
        if len(self._rest) == 1:
            return None
        if self._rest[1] not in "[O":
            return "escape", 1
        for at, one in enumerate(self._rest[2:], 2):
            if "@" <= one <= "~":
                return _SEQUENCES.get(self._rest[2 : at + 1], ""), at + 1
        return None


class Terminal(AbstractContextManager["Terminal"]):
    """That of this process, for the block's length."""

    def __init__(self) -> None:
        self.encoding = sys.stdout.encoding or "ascii"
        colours = {} if os.environ.get("NO_COLOR") else {**_COLOURS, "dim": "\x1b[2m"}
        self._styles: Mapping[str, str] = _PLAIN | colours
        self._keys = Keys(self.encoding)
        self._pressed: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: asyncio.TimerHandle | None = None
        self._shown: list[str] = []
        self._before: Any = None

    @property
    def paper(self) -> Paper:
        """As wide as it is now."""
        return Paper(self._size().columns, self.encoding)

    @property
    def height(self) -> int:
        return self._size().lines

    async def keys(self) -> AsyncIterator[str]:
        """As they are pressed; `redraw` when its size has changed."""
        while (key := await self._pressed.get()) != _END:
            yield key

    def draw(self, lines: Sequence[Line], chosen: frozenset[int]) -> None:
        """These, from the top; the `chosen` ones stand out."""
        width = self._size().columns
        said = []
        for at, line in enumerate(lines):
            style = self._styles.get("chosen" if at in chosen else line.style, "")
            room = width - cell_len(line.text) if at in chosen else 0
            text = line.text + " " * room
            said.append(f"{style}{text}\x1b[0m" if style else text)
        said += [""] * (self.height - len(said))
        changed = [
            f"\x1b[{at};1H\x1b[K{line}"
            for at, line in enumerate(said, 1)
            if at > len(self._shown) or self._shown[at - 1] != line
        ]
        self._shown = said
        self._write("".join(changed))

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._begin()
        if self._before is not None:
            loop.add_reader(0, self._read)
        loop.add_signal_handler(signal.SIGWINCH, self._changed)
        loop.add_signal_handler(signal.SIGTSTP, self._pause)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_signal_handler(signal.SIGTSTP)
        if self._before is not None:
            loop.remove_reader(0)
        self._end()

    def _begin(self) -> None:
        """Keys come one by one and unseen; Ctrl-C and Ctrl-Z stay signals."""
        if sys.stdin is not None and sys.stdin.isatty():
            self._before = termios.tcgetattr(0)
            tty.setcbreak(0, termios.TCSADRAIN)
        self._shown = []
        self._write(_ENTER)

    def _end(self) -> None:
        self._write(_LEAVE)
        if self._before is not None:
            termios.tcsetattr(0, termios.TCSADRAIN, self._before)

    def _pause(self) -> None:
        """Ctrl-Z: the shell has the terminal until it says `fg`."""
        self._end()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._begin()
        self._changed()

    def _changed(self) -> None:
        self._shown = []
        self._write("\x1b[2J")
        self._pressed.put_nowait("redraw")

    def _read(self) -> None:
        try:
            said = os.read(0, 4096)
        except OSError:
            said = b""
        if not said:  # nobody has its other end any more
            asyncio.get_running_loop().remove_reader(0)
            self._pressed.put_nowait(_END)
            return
        if self._waiting:
            self._waiting.cancel()
        self._press(self._keys.feed(said))
        if self._keys.begun:
            loop = asyncio.get_running_loop()
            self._waiting = loop.call_later(_ESCAPE_ALONE, self._escape_alone)

    def _escape_alone(self) -> None:
        if self._keys.begun:
            self._press(self._keys.alone())

    def _press(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._pressed.put_nowait(key)

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(1)
        except OSError:
            size = os.terminal_size((80, 24))
        return os.terminal_size((size.columns or 80, size.lines or 24))

    def _write(self, said: str) -> None:
        sys.stdout.buffer.write(said.encode(self.encoding, "backslashreplace"))
        sys.stdout.buffer.flush()
