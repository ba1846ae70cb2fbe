"""A session: one interpreter, in one jail, that lives across calls.

What it says comes from the program's own process and is believed about nothing but that program.
Only a short header is parsed. The texts behind it are taken as they are, with a cap on all of them.
They are never waited for longer than the cell's time and a grace.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from jail.inside import wire
from jail.limits import Limits
from jail.outcome import Outcome
from jail.server import TooLong, receive

_GRACE = 1.0  # for the kernel's own timer to interrupt the cell first
_HEADER = 1 << 16  # bytes that say which text is which
# What an interpreter that is the program's own can make of its answer: nothing in it is believed.
_LIES = (
    OSError, TimeoutError, ValueError, TypeError, LookupError, AttributeError, RecursionError,
)  # fmt: skip


class SessionEnded(Exception):
    """The interpreter is gone: a limit was passed, a cell ended it, or it was closed."""


@dataclass(frozen=True)
class Cell:
    """The result of one cell; `display` and `error` as a notebook has them."""

    stdout: str = ""
    stderr: str = ""
    display: list[dict[str, str]] = field(default_factory=list)
    error: list[dict[str, Any]] = field(default_factory=list)
    size: int = 0  # bytes, of all that it wrote and showed


class Notebook:
    """Made by `Jails.session`. Cells run one after the other."""

    def __init__(
        self, channel: socket.socket, ending: "asyncio.Future[Outcome]", limits: Limits
    ) -> None:
        self._channel = channel
        self._ending = ending
        self._limits = limits
        self._turn = asyncio.Lock()
        self._said_too_much = False

    @property
    def alive(self) -> bool:
        return not self._ending.done()

    def on_end(self, call: Callable[[], object]) -> None:
        """Call this when its jail has ended."""
        self._ending.add_done_callback(lambda _: call())

    async def run(self, code: str, within: float | None = None, most: int | None = None) -> Cell:
        """Run one cell. Raises `SessionEnded` if the interpreter does not come back from it.

        Or if it says more than `most`, which is the limit of output unless it is given.
        """
        seconds = within or self._limits.wall
        most = self._limits.output if most is None else most
        async with self._turn:
            try:
                async with asyncio.timeout(seconds + _GRACE):
                    return await self._exchange(code, seconds, most)
            except _LIES as problem:
                self._said_too_much |= isinstance(problem, TooLong)
                self._channel.close()  # out of step from here on; nothing more is believed
                raise SessionEnded(f"the interpreter gave no answer: {problem!r}") from None
            except asyncio.CancelledError:
                self._channel.close()  # the answer is still to come, and would be the next cell's
                raise

    async def _exchange(self, code: str, seconds: float, most: int) -> Cell:
        message = wire.pack({"timeout": seconds, "most": most}, [code.encode(errors="replace")])
        await asyncio.get_running_loop().sock_sendall(self._channel, message)
        answer = await receive(self._channel, most + _HEADER)
        if (length := int.from_bytes(answer[:4], "big")) > _HEADER:
            raise TooLong(f"a header of {length} bytes: too many things were shown")
        header, texts = wire.unpack(answer)
        if (size := sum(map(len, texts))) > most:
            raise TooLong(f"{size} bytes of output, above {most}")
        return _cell(header, [text.decode(errors="replace") for text in texts], size)

    async def end(self) -> Outcome:
        """Let the interpreter finish, and say how the whole of it ended, with its files."""
        self._channel.close()
        outcome = await asyncio.shield(self._ending)
        if self._said_too_much and outcome.run and outcome.status == "finished":
            run = replace(outcome.run, status="output_limit", return_code=None)
            return replace(outcome, status="output_limit", run=run)
        return outcome


def _cell(header: dict[str, Any], texts: list[str], size: int) -> Cell:
    """Sort the texts of one cell."""
    rest = deque(texts)
    stdout, stderr = rest.popleft(), rest.popleft()
    display = [{_name(form): rest.popleft() for form in forms} for forms in header["shown"]]
    error = []
    if header["failed"]:
        name, value, *lines = rest
        error = [{"ename": name, "evalue": value, "traceback": lines}]
    return Cell(stdout, stderr, display, error, size)


def _name(form: object) -> str:
    """The name as text without a lone surrogate, which other readers of JSON refuse."""
    return str(form).encode(errors="replace").decode()
