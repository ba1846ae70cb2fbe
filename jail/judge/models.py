"""A judge's request has one program and its cases; its result has a verdict for each. Both are
JSON.

The request is strict: a worker that ignored a key would give a verdict that nobody asked for.
The result stays small: a letter a case, numbers in arrays, and of the outputs a head and a tail.
"""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ground.errors import PenstockError
from ground.numbers import MOST, shown
from jail.errors import RequestRefused, SandboxFailure, unreadable
from jail.judge.fault import Fault, fault_of
from jail.models import (
    MAX_CODE,
    MAX_STDIN,
    CodeResult,
    CommandResult,
    Cost,
    ErrorKind,
    Files,
    Label,
    Language,
    Message,
    Seconds,
    utf8,
)

MAX_CASES = 10_000
_BY_VALUE = frozenset({"python", "cpp", "nodejs", "bash"})
MAX_INLINE = 256 << 10  # bytes of all cases that travel with the request; more go as a suite
WALL_FACTOR = 3.0
NOT_JUDGED = frozenset({"pytest"})  # which looks for its tests by the names of files
MAX_KEPT = 16 << 20  # bytes of outputs that come back
LONGEST = 3600.0  # seconds for all cases, if the request does not say less

VERDICTS = {
    "P": "passed",
    "W": "wrong",
    "E": "error",
    "C": "compile_error",
    "T": "timeout",
    "L": "limit",
    "M": "masked",  # the sandbox, Penstock or the checker failed: nothing is known
    "S": "skipped",  # not needed any more, or cut off by `total_seconds`
}
Letter = Literal["P", "W", "E", "C", "T", "L", "M", "S"]
Rule = Literal[
    "exact", "ends", "lines", "decimals", "tokens", "tokens_nocase", "floats", "unordered"
]
Mode = Literal["stdin", "function", "check", "interactive"]
Memory = Annotated[int, Field(ge=1, le=1 << 20)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CaseLimits(_Strict):
    """Limits of one case, where they are not those of the request."""

    run_timeout: Seconds | None = None
    wall_timeout: Seconds | None = None
    memory_limit_mb: Memory | None = None


class Compare(_Strict):
    """How what was printed is compared with what is expected; `jail/judge/compare.py`."""

    rule: Rule = "ends"
    abs: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    rel: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6


class Checker(_Strict):
    """A program that judges, or that talks with the program (an interactor).

    testlib    `input output answer` as arguments; 0 right, 1 and 2 and 4 and 8 wrong, 7 and 16
               to 116 points, 3 a failure of its own
    open_r1    `input answer output` as arguments; prints a number, 1 or 100 is right
    scalebox   files stdin.txt, stdout.txt (expected) and answer.txt (printed); 0 right, 1 wrong

    A checker may fail: by a signal, by a limit, by testlib's 3, or in Python by an exception
    other than an `AssertionError`. If it reads the expected output without that, the program is
    wrong. If it fails on that as well, its case is masked.
    """

    code: Annotated[str, utf8(MAX_CODE)]
    language: Language = "cpp"
    protocol: Literal["testlib", "open_r1", "scalebox"] = "testlib"
    timeout: Seconds = 10.0


_Text = Annotated[str, utf8(MAX_STDIN)]


class JudgeCase(_Strict):
    """A case that travels with its request. Several `expected` are a set of accepted answers;
    None: to return 0 is enough. `check` is code that is put behind the program."""

    input: _Text = ""
    expected: _Text | list[_Text] | None = None
    check: Annotated[str, utf8(MAX_CODE)] = ""

    @field_validator("expected")
    @classmethod
    def _some_answer(cls, expected: str | list[str] | None) -> str | list[str] | None:
        if expected == []:
            raise ValueError("accepts no answer at all; the value of an empty list is the text []")
        return expected

    @property
    def size(self) -> int:
        """The size in bytes of UTF-8."""
        answers = [self.expected] if isinstance(self.expected, str) else self.expected or []
        return sum(len(text.encode()) for text in (self.input, self.check, *answers))


class SuiteRef(_Strict):
    """Cases that are in Redis, by the digest of their manifest."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    count: Annotated[int, Field(ge=1, le=MAX_CASES)]


class JudgeRequest(Message):
    """A program and its cases: `cases`, at most 256 kB of them, or a `suite`.

    mode         stdin: the input is what the program reads; function: the input is the arguments
                 of `function`, a JSON value a line; check: as stdin, and each case has code behind
                 the program, compiled with it if the language is; interactive: the `interactor` has
                 the input, and talks to the program
    run_timeout  seconds of processor time of one case. `wall_timeout` is by the clock: unset, three
                 times as much, and then a program that waits for a processor is not ended
    compile_timeout  seconds of processor time. A compiler that waits for anything else is ended
                 after three times as much by the clock
    overrides    by a case's index
    values       a function is judged by what it returns, and an assertion of a call with plain
                 arguments by that, too: outside, by value. False, as verl does it: what is returned
                 is printed, and assertions run behind the program
    stop         none: all cases run; first, or a number: after so many that failed the others are
                 skipped, at once
    stop_timeouts  after so many that ran out of time, and none before them that passed, the others
                 count as timeouts, and are not run; None: all run
    keep         of which cases the outputs come back, `keep_bytes` of the head and of the tail
    total_seconds  for all cases together, unset an hour; those that are cut off are skipped, or
                 timeouts if the program's own cases used half of the time, awake or asleep
    cost         how many of its gate's limit it takes; so does each case that runs beside it
    progress     whether the worker says meanwhile which case it is at, for
                 `worker.judging.progress.listening`
    """

    REFUSAL: ClassVar[Callable[[str], PenstockError]] = RequestRefused

    code: Annotated[str, utf8(MAX_CODE)]
    language: Language = "python"
    files: Files = Field(default_factory=dict)
    mode: Mode = "stdin"
    function: Annotated[str, utf8(1024)] | None = None
    values: bool = True
    cases: list[JudgeCase] | None = Field(default=None, max_length=MAX_CASES)
    suite: SuiteRef | None = None
    compare: Compare = Compare()
    checker: Checker | None = None
    interactor: Checker | None = None
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    wall_timeout: Seconds | None = None
    memory_limit_mb: Memory | None = None
    overrides: dict[int, CaseLimits] = Field(default_factory=dict, max_length=MAX_CASES)
    stop: Literal["none", "first"] | Annotated[int, Field(ge=1, le=MOST)] = "none"
    stop_timeouts: Annotated[int, Field(ge=1, le=MOST)] | None = 5
    keep: Literal["none", "first_failure", "failures", "all"] = "first_failure"
    keep_bytes: Annotated[int, Field(ge=0, le=MAX_KEPT // 2)] = 1024
    keep_total: Annotated[int, Field(ge=0, le=MAX_KEPT)] = 64 << 10
    total_seconds: Seconds | None = None
    progress: bool = False
    labels: dict[Label, Label] = Field(default_factory=dict, max_length=64)
    cost: Cost = 1
    correlation_id: str = Field(default="", pattern=r"^[\x21-\x7e]{0,128}$")

    model_config = ConfigDict(extra="forbid")

    @field_validator("cases")
    @classmethod
    def _few_bytes_travel(cls, cases: list[JudgeCase] | None) -> list[JudgeCase] | None:
        if cases is not None and (size := sum(case.size for case in cases)) > MAX_INLINE:
            raise ValueError(
                f"are {size:,} bytes, and at most {MAX_INLINE:,} travel with a request: `CodeQueue"
                ".judge` sends more as a suite"
            )
        return cases

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if wrong := self._wrong():
            raise RequestRefused(f"JudgeRequest {wrong}")
        return self

    def _wrong(self) -> str:
        if (self.cases is None) == (self.suite is None):
            return "has either `cases` or a `suite`"
        if self.cases is not None and not self.cases:
            return "has no cases: a program is judged on at least one"
        if (self.mode == "function") != bool(self.function):
            return "names a `function` in mode function, and only there"
        if self.mode == "function" and self.language != "python":
            return f"has mode function, which is for Python, and language {self.language!r}"
        if self.compiles_each_case and self.checker is not None:
            return f"has a checker, and in {self.language!r} assertions that are compiled in"
        if (self.mode == "interactive") != (self.interactor is not None):
            return "has an `interactor` in mode interactive, and only there"
        if self.interactor is not None and self.checker is not None:
            return "has a `checker` and an `interactor`: a case is judged by one of them"
        if self.mode not in ("function", "check") and any(case.check for case in self.cases or ()):
            return "has cases with a `check`, which mode check and mode function run"
        if beyond := [index for index in self.overrides if not 0 <= index < self.count]:
            return f"overrides case {shown(beyond[0])}, and has cases 0 to {self.count - 1}"
        return ""

    @property
    def count(self) -> int:
        """How many cases there are."""
        return self.suite.count if self.suite is not None else len(self.cases or ())

    @property
    def failures_until_stop(self) -> int | None:
        """The number of failed cases after which the others are skipped; None: never."""
        return {"none": None, "first": 1}[self.stop] if isinstance(self.stop, str) else self.stop

    def limits(self, index: int) -> CaseLimits:
        """The limits of one case, times filled in; a memory limit of None is the sandbox's own."""
        own = self.overrides.get(index, CaseLimits())
        cpu = own.run_timeout or self.run_timeout
        wall = own.wall_timeout or (None if own.run_timeout else self.wall_timeout)
        return CaseLimits(
            run_timeout=cpu,
            wall_timeout=wall or min(cpu * WALL_FACTOR, 3600.0),
            memory_limit_mb=own.memory_limit_mb or self.memory_limit_mb,
        )

    def is_patient(self, index: int) -> bool:
        """Whether nobody has limited its time by the clock, and a busy machine costs no case."""
        own = self.overrides.get(index, CaseLimits())
        return (own.wall_timeout or (None if own.run_timeout else self.wall_timeout)) is None

    @property
    def all_limits(self) -> list[CaseLimits]:
        """The limits of cases without limits of their own, then those of each case that has
        some."""
        return [self.limits(index) for index in (-1, *self.overrides)]

    @property
    def compiles_each_case(self) -> bool:
        """Whether assertions make another program of each case; Python has them run behind it."""
        return self.mode == "check" and self.language != "python"

    @property
    def judges_values(self) -> bool:
        """Whether what functions return is compared; a checker reads what was printed."""
        read = self.checker or self.interactor
        return self.values and self.language in _BY_VALUE and read is None

    @property
    def total(self) -> float:
        """Seconds for all cases together."""
        return self.total_seconds or LONGEST

    @property
    def compiling(self) -> float:
        """Seconds of a processor that compiling may take, before the first case."""
        return self.compile_timeout * (1 + bool(self.checker) + bool(self.interactor))

    @property
    def longest(self) -> float:
        """Seconds that judging may take, compiling included."""
        each = max(own.wall_timeout or 0.0 for own in self.all_limits)
        if self.checker is not None:
            each += WALL_FACTOR * self.checker.timeout
        if self.compiles_each_case:
            each += self.compile_timeout
        return self.compiling + min(self.count * each, self.total)


class Kept(BaseModel):
    """The kept output of a case: of each stream the head, and the tail if something is left out."""

    stdout: str = ""
    stdout_tail: str = ""
    stdout_bytes: int = 0
    stdout_cut: bool = False  # the sandbox itself kept only the beginning
    stderr: str = ""
    stderr_tail: str = ""
    stderr_bytes: int = 0

    @classmethod
    def of(cls, stdout: bytes, stderr: bytes, keep_bytes: int, *, cut: bool = False) -> "Kept":
        """Keep `keep_bytes` of each end of both streams."""
        (head, tail), (error_head, error_tail) = (
            _ends(stream, keep_bytes) for stream in (stdout, stderr)
        )
        return cls(
            stdout=head, stdout_tail=tail, stdout_bytes=len(stdout), stdout_cut=cut,
            stderr=error_head, stderr_tail=error_tail, stderr_bytes=len(stderr),
        )  # fmt: skip

    @property
    def size(self) -> int:
        """The size in bytes of UTF-8."""
        texts = (self.stdout, self.stdout_tail, self.stderr, self.stderr_tail)
        return sum(len(text.encode()) for text in texts)

    @property
    def stdout_text(self) -> str:
        """The kept stdout, with a mark where something is left out."""
        return _joined(self.stdout, self.stdout_tail, self.stdout_bytes)

    @property
    def stderr_text(self) -> str:
        """The kept stderr, with the same mark."""
        return _joined(self.stderr, self.stderr_tail, self.stderr_bytes)

    @property
    def whole(self) -> bool:
        """Whether nothing of stdout is left out."""
        left_out = self.stdout_cut or self.stdout_tail
        return not left_out and bool(self.stdout or not self.stdout_bytes)


def _joined(head: str, tail: str, size: int) -> str:
    return f"{head}\n[of {size:,} bytes, the ends are kept]\n{tail}" if tail else head


def _ends(stream: bytes, keep_bytes: int) -> tuple[str, str]:
    if len(stream) <= 2 * keep_bytes:
        return stream.decode(errors="replace"), ""
    head, tail = stream[:keep_bytes], stream[len(stream) - keep_bytes :]
    return head.decode(errors="replace"), tail.decode(errors="replace")


class JudgeResult(Message):
    """A verdict for each case, in order; what its program cost; how compiling went.

    `verdicts` has a letter for each case (`VERDICTS`). The arrays have a number for each, 0 where
    a case did not run. `exits`, `reasons`, `comments`, `points` and `kept` are sparse: by index.
    """

    REFUSAL: ClassVar[Callable[[str], PenstockError]] = staticmethod(unreadable)

    verdicts: Annotated[str, Field(pattern="^[PWECTLMS]*$")]
    compile_result: CommandResult | None = None
    cpu_ms: list[int] = Field(default_factory=list)
    wall_ms: list[int] = Field(default_factory=list)
    memory_kb: list[int] = Field(default_factory=list)
    exits: dict[int, int] = Field(default_factory=dict, description="Exit codes that are not 0.")
    reasons: dict[int, str] = Field(default_factory=dict, description="A word for machines.")
    comments: dict[int, str] = Field(
        default_factory=dict, description="What a checker said, or a wrong function returned."
    )
    points: dict[int, float] = Field(default_factory=dict, description="What a checker gave.")
    kept: dict[int, Kept] = Field(default_factory=dict)
    evidence: dict[int, str] = Field(
        default_factory=dict,
        description="What a verdict of time, of a limit, or none stands on; of a reason's first.",
    )
    shared: int = Field(
        default=0,
        ge=0,
        description="Cases whose assertions ran in the program's process, which can fool them.",
    )
    error_reason: str = Field(default="", description="Why all are masked: a word for machines.")
    message: str = Field(default="", description="The same, for people.")

    isolation: str = "unknown"
    attempts: int = Field(default=1, ge=0)
    queued_seconds: float = 0.0
    permit_seconds: float = 0.0
    backoff_seconds: float = 0.0
    running_seconds: float = 0.0
    correlation_id: str = ""

    @property
    def passed(self) -> int:
        """How many cases passed."""
        return self.verdicts.count("P")

    @property
    def masked_because(self) -> str:
        """The reason of the first case that is masked, or else was cut off; empty if none is."""
        if (at := self.verdicts.find("M")) >= 0:
            return self.reasons.get(at) or self.error_reason or "unknown"
        return next((why for at, why in self.reasons.items() if self.verdicts[at] == "S"), "")

    def fault(self, index: int) -> Fault:
        """The side whose fault it is that the case has not passed."""
        return fault_of(self.verdicts[index], self.reasons.get(index, self.error_reason))

    @property
    def fault_of_mask(self) -> Fault:
        """The side whose fault the first masked case is; empty if none is masked."""
        at = self.verdicts.find("M")
        return "" if at < 0 else self.fault(at)

    @property
    def error_kind(self) -> ErrorKind:
        """The error kind of a run of this case; `infrastructure` if the case is masked."""
        if "M" in self.verdicts:
            return "infrastructure"
        if set(self.verdicts) & {"T", "L"}:
            return "limit"
        return "user" if set(self.verdicts) & {"W", "E", "C"} else "none"

    def of_case(self, index: int) -> CodeResult:
        """The case as the result of a run of its own, with the outputs that were kept."""
        letter, reason = self.verdicts[index], self.reasons.get(index, "")
        fields: dict[str, Any] = {
            "status": "Success" if letter in "PW" else "Failed",
            "compile_result": self.compile_result,
            "run_result": self._run_of(index, letter),
            "isolation": self.isolation,
            "attempts": self.attempts,
            "correlation_id": self.correlation_id,
        }
        if letter == "C":
            fields["compile_result"] = self._failed_compile()
            fields["run_result"] = None
        elif letter in "EL":
            kind = "user" if letter == "E" else "limit"
            fields |= {"error_kind": kind, "error_reason": reason or "exit"}
        elif letter in "MS":
            fields |= {
                "status": "SandboxError",
                "run_result": None,
                "compile_result": None,
                "error_kind": "infrastructure",
                "error_reason": reason or self.error_reason or VERDICTS[letter],
                "message": self.message,
            }
        return CodeResult(**fields)

    def _failed_compile(self) -> CommandResult:
        found = self.compile_result
        if found is not None and (found.return_code != 0 or found.status != "Finished"):
            return found
        return CommandResult(status="Finished", return_code=1, stdout="", stderr=self.message)

    def _run_of(self, index: int, letter: str) -> CommandResult:
        kept = self.kept.get(index)
        code = self.exits.get(index, {"E": 1, "L": -9}.get(letter, 0))
        return CommandResult(
            status="TimeLimitExceeded" if letter == "T" else "Finished",
            execution_time=self.wall_ms[index] / 1000 if index < len(self.wall_ms) else None,
            return_code=None if letter == "T" else code,
            stdout=kept.stdout_text if kept else None,
            stderr=kept.stderr_text if kept else None,
            stdout_truncated=kept is not None and not kept.whole,
        )

    @classmethod
    def of_failure(cls, failure: SandboxFailure, count: int) -> "JudgeResult":
        """All masked: the sandbox failed before there was a verdict."""
        known = failure.result if isinstance(failure.result, JudgeResult) else None
        if known is not None:
            return known
        return cls(
            verdicts="M" * count,
            error_reason=failure.reason,
            message=str(failure),
        )
