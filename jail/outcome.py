"""A program goes in, and its outcome comes out. What went wrong is in the outcome, be it the
fault of the program or of the sandbox."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from jail.limits import DEFAULTS, Limits

Status = Literal[
    "finished",  # it ended by itself: see the return code, negative for a signal
    "time_limit",
    "memory_limit",
    "output_limit",
    "process_limit",
    "refused",  # the request cannot be run as it stands; see `error`
    "infrastructure",  # our failure, not the program's; worth another try
]


@dataclass(frozen=True)
class Program:
    """Source code in one language, and what it finds when it runs."""

    code: str
    language: str = "python"
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()  # behind the command that runs it
    limits: Limits = DEFAULTS


@dataclass(frozen=True)
class Step:
    """A step is the life of one process tree: the compiler's, or the program's."""

    status: Status
    return_code: int | None
    stdout: bytes
    stderr: bytes
    duration: float
    cpu: float
    memory_peak: int
    processes_peak: int
    idle: float = 0.0  # seconds in which none of it ran, nor would have
    proof: str = ""  # what its init saw of the limit that it passed
    marked: bool = True  # False: a script was to come to its end, and ended before
    answer: bytes = b""  # what its functions returned, as `jail/inside/values.py` writes it
    stdout_cut: ClassVar[bool] = False  # a program that prints more than is kept has hit a limit


@dataclass(frozen=True)
class Outcome:
    """How it ended. `run` is absent when the program itself was not run."""

    status: Status
    level: str
    run: Step | None = None
    compile: Step | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    refused_files: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    reason: str = ""  # of a refusal: a word for machines

    @property
    def last(self) -> Step | None:
        """The step that decided."""
        return self.run or self.compile

    @property
    def stdout(self) -> bytes:
        return self.last.stdout if self.last else b""

    @property
    def stderr(self) -> bytes:
        return self.last.stderr if self.last else b""

    @property
    def return_code(self) -> int | None:
        return self.last.return_code if self.last else None
