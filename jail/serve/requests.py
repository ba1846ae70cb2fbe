"""The requests of clients, field by field as Sandbox Fusion takes them; unknown fields are
ignored."""

import asyncio
import base64
import binascii
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from ground.http import Sheet
from jail import languages
from jail.languages import LanguageAbsent

_IGNORED = "IGNORE_THIS_FILE"


class BadFile(Exception):
    """A file whose content is not base64: upstream's answer is 200 with SandboxError."""


class _Files(BaseModel):
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []
    memory_limit_MB: int = -1

    def contents(self) -> dict[str, bytes]:
        given = {
            name: "".join(text.split())  # many encoders write lines
            for name, text in self.files.items()
            if text is not None and _IGNORED not in name
        }
        try:
            return {name: base64.b64decode(text, validate=True) for name, text in given.items()}
        except (binascii.Error, ValueError) as problem:
            raise BadFile(f"files: {problem}") from None

    @property
    def memory(self) -> int | None:
        return self.memory_limit_MB if self.memory_limit_MB > 0 else None


Argument = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]


class RunCode(_Files):
    code: str
    language: str
    compile_timeout: float = Field(10, gt=0, allow_inf_nan=False)
    run_timeout: float = Field(10, gt=0, allow_inf_nan=False)
    stdin: str | None = None
    args: list[Argument] = Field(default=[], max_length=64)  # of pytest, as upstream has it

    @field_validator("language")
    @classmethod
    def _language_runs_here(cls, name: str, info: ValidationInfo) -> str:
        try:
            languages.find(name, info.context or ())
        except LanguageAbsent as absence:
            raise ValueError(str(absence)) from None
        return name


class RunJupyter(_Files):
    cells: list[str]
    cell_timeout: float = Field(0, ge=0, allow_inf_nan=False)
    total_timeout: float = Field(45, gt=0, allow_inf_nan=False)
    kernel: Literal["python3"] = "python3"


_ENDING = "the server is ending"


class NoRoom(Exception):
    """The line is full, or did not move in time."""


class Line:
    """A line for programs: at most `places` at once, `longest` waiting, nobody longer than
    `patience` seconds."""

    def __init__(self, places: int, longest: int, patience: float) -> None:
        self._places = asyncio.Semaphore(places)
        self._longest = longest
        self._patience = patience
        self._closed = False
        self._patient: set[asyncio.Timeout] = set()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._patient)

    def close(self) -> None:
        """Give no place any more: those who wait, or come, are sent elsewhere at once."""
        self._closed = True
        for timeout in self._patient:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())

    @property
    def full(self) -> bool:
        """Whether every place is taken."""
        return self._places.locked()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        if self._places.locked() and self.waiting >= self._longest:
            raise NoRoom(f"{self.waiting} requests are waiting already")
        if self._closed:
            raise NoRoom(_ENDING)
        try:
            async with asyncio.timeout(self._patience) as timeout:
                self._patient.add(timeout)
                try:
                    await self._places.acquire()
                finally:
                    self._patient.discard(timeout)
        except TimeoutError:
            why = _ENDING if self._closed else f"no place became free in {self._patience:g} s"
            raise NoRoom(why) from None
        try:
            yield
        finally:
            self._places.release()


class Tally:
    """The counts of one server, since it started."""

    def __init__(self) -> None:
        self._running = 0
        self._ended: Counter[str] = Counter()
        self._seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.monotonic()
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._seconds += time.monotonic() - began

    def ended(self, outcome: str) -> None:
        self._ended[outcome] += 1

    def enter(self, sheet: Sheet) -> None:
        sheet.gauge("penstock_sandbox_running", "Programs that run now.", self._running)
        sheet.count("penstock_sandbox_busy_seconds_total",
                    "Seconds that programs have run, added up.", self._seconds)  # fmt: skip
        for outcome, times in sorted(self._ended.items()) or [("finished", 0)]:
            sheet.count("penstock_sandbox_programs_total", "Programs by how they ended.", times,
                        outcome=outcome)  # fmt: skip
