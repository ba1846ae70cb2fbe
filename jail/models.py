"""A trainer asks with a `CodeRequest` and gets a `CodeResult`: JSON from end to end.

The fields that Sandbox Fusion has too carry its names and meanings. `error_kind`
says whose doing the end was; an `infrastructure` failure is masked, it is never
the program's result.
"""

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from ground.errors import PenstockError
from ground.message_versions import Versioned
from ground.numbers import shown
from jail.errors import RequestRefused, SandboxFailure, unreadable


def utf8(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as wrong:
            raise ValueError(
                f"has a lone surrogate at {wrong.start}, which UTF-8 cannot carry"
            ) from None
        if size > limit:
            raise ValueError(f"is {size:,} bytes, and at most {limit:,} are taken")
        return text

    return AfterValidator(check)


def _named(name: str) -> str:
    parts = name.split("/")
    if "\0" in name or parts[-1] in ("", "."):
        raise ValueError(f"has {name!r}, which names no file")
    if ".." in parts:
        raise ValueError(f"has {name!r}, which leads out of the work directory by '..'")
    return name


def _inside(name: str) -> str:
    if name.startswith("/"):
        raise ValueError(f"has {name!r}; names must be relative to the work directory")
    return name


MAX_TIMEOUT = 3600.0

Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT, allow_inf_nan=False)]
Name = Annotated[str, utf8(1024), AfterValidator(_named)]
Label = Annotated[str, utf8(1024)]
RelativeName = Annotated[Name, AfterValidator(_inside)]


SHOWN = 64 << 10  # bytes of what a compiler says
OUTPUT_LIMIT = 1 << 20  # bytes of UTF-8, for stdout and for stderr


def truncate(text: str, limit: int = OUTPUT_LIMIT) -> tuple[str, bool]:
    """Keep the beginning, at most `limit` bytes of UTF-8, and mark the cut.

    The marker comes on top of the limit. A lone surrogate, which UTF-8 cannot
    carry, becomes `?`.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode(), False
    kept = raw[:limit].decode("utf-8", "ignore")  # a character cut in two is dropped
    return f"{kept}\n[truncated: {len(raw):,} bytes, the first {limit:,} kept]", True


class Message(Versioned):
    """JSON on the wire, of this schema version or the one before it."""

    REFUSAL: ClassVar[Callable[[str], PenstockError]]

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self:
        """Read one from JSON. Raises `VersionError`, or the class's own refusal."""
        if not isinstance(message, dict):
            raise cls.REFUSAL(f"{cls.__name__} is a JSON object, not {type(message).__name__}")
        return super().read(message)

    def dump(self) -> dict[str, Any]:
        """The result as JSON, for `read` on the other side."""
        return self.model_dump(mode="json")

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_in_one_sentence(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as refusal:
            raise cls.REFUSAL(f"{cls.__name__}: {_sentence(refusal)}") from None


def _sentence(refusal: ValidationError) -> str:
    first = refusal.errors(include_url=False)[0]
    where = str(first["loc"][0]) if first["loc"] else "message"
    if first["type"] == "value_error":
        return f"{where} {first['msg'].removeprefix('Value error, ')}"
    got = "" if first["type"] == "missing" else f" (got {shown(first['input'])})"
    return f"{where}: {first['msg']}{got}"


# Sandbox Fusion's list, then what its newer client adds.
LANGUAGES = frozenset({
    "python", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript",
    "sql", "rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest",
    "junit", "kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift", "racket",
    "python2", "gtest", "react",
    "c",  # not in that list: of the embedded sandbox
})  # fmt: skip
MAX_CODE = 1 << 20  # bytes of UTF-8
MAX_STDIN = 16 << 20
MAX_FILES_SIZE = 16 << 20  # of all files together, base64 as sent
MAX_FILES = 256

CommandStatus = Literal["Finished", "Error", "TimeLimitExceeded"]
Status = Literal["Success", "Failed", "SandboxError"]
ErrorKind = Literal["none", "user", "limit", "infrastructure"]


def _known(language: str) -> str:
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES, key=str.lower))
        raise ValueError(f"{language[:40]!r} is unknown; known are {known}")
    return language


def _base64(files: dict[str, str]) -> dict[str, str]:
    """Check files' base64. Many encoders write it in lines; the line ends are taken out."""
    size = sum(map(len, files.values()))
    if size > MAX_FILES_SIZE:
        raise ValueError(f"are {size:,} bytes of base64, and at most {MAX_FILES_SIZE:,} go")
    files = {name: "".join(content.split()) for name, content in files.items()}
    for name, content in files.items():
        try:
            base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"has {name!r}, whose content is not base64") from None
    return files


Language = Annotated[str, AfterValidator(_known)]
Cost = Annotated[int, Field(ge=1, le=10**9)]
Files = Annotated[
    dict[RelativeName, str],
    Field(max_length=MAX_FILES, description="Relative name to base64."),
    AfterValidator(_base64),
]


class CodeRequest(Message):
    """A program to run. File names may be nested, and never lead out by `..`."""

    REFUSAL: ClassVar[Callable[[str], PenstockError]] = RequestRefused

    code: Annotated[str, utf8(MAX_CODE)]
    language: Language = "python"
    stdin: Annotated[str, utf8(MAX_STDIN)] | None = None
    files: Files = Field(default_factory=dict)
    fetch_files: list[Name] = Field(
        default_factory=list,
        max_length=MAX_FILES,
        description="Files to bring back. An absolute name is one inside the sandbox; a provider "
        "whose sandbox shares a file system with anybody refuses it.",
    )
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_mb: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        validation_alias=AliasChoices("memory_limit_mb", "memory_limit_MB"),
        description="None, or Sandbox Fusion's -1: no limit of its own.",
    )
    instance_id: Label | None = Field(
        default=None,
        description="Its session, which a worker that keeps none refuses. Samples go to `labels`.",
    )
    labels: dict[Label, Label] = Field(default_factory=dict, max_length=64)
    cost: Cost = Field(default=1, description="How many of its gate's limit it takes.")
    correlation_id: str = Field(default="", pattern=r"^[\x21-\x7e]{0,128}$")

    model_config = ConfigDict(populate_by_name=True)

    KEEPS: ClassVar[int] = 0  # bytes of each output, if they are more than a sandbox keeps anyway

    @field_validator("memory_limit_mb", mode="before")
    @classmethod
    def _minus_one_is_no_limit(cls, limit: Any) -> Any:
        return None if limit == -1 else limit


# What Penstock's own sandbox says of a command that it ended, and the reason in a result.
LIMITS = {"memory": "memory_limit", "output": "output_limit", "processes": "process_limit"}


class CommandResult(BaseModel):
    """How one command ended: the compiler, or the program."""

    model_config = ConfigDict(extra="allow")

    status: CommandStatus
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_truncated: bool = False
    stderr_truncated: bool = False

    def bounded(self, limit: int) -> Self:
        """The result with each output at most `limit` bytes long, the cut marked."""
        changed: dict[str, Any] = {}
        for name in ("stdout", "stderr"):
            text, cut = truncate(getattr(self, name) or "", limit)
            changed[name] = getattr(self, name) and text
            changed[f"{name}_truncated"] = getattr(self, f"{name}_truncated") or cut
        return self.model_copy(update=changed)


def kind_of_end(
    status: Status, compiled: CommandResult | None, ran: CommandResult | None
) -> tuple[ErrorKind, str]:
    """The `error_kind` and the `error_reason` of a result: whose fault its end was, and why.

    A memory limit that was hit shows only in what the program wrote, which is no
    evidence. A sandbox that knows says so itself, as `limit` beside upstream's fields.
    """
    if status == "SandboxError" or "Error" in (compiled and compiled.status, ran and ran.status):
        return "infrastructure", "sandbox_error"
    kind, reason = _end_of(compiled, ran)
    if (status == "Success") != (kind == "none") or not (compiled or ran):
        return "infrastructure", "contradiction"
    return kind, reason


def _end_of(
    compiled: CommandResult | None, ran: CommandResult | None
) -> tuple[Literal["none", "user", "limit"], str]:
    for stage, result in (("compile", compiled), ("run", ran)):
        if result and result.status == "TimeLimitExceeded":
            return "limit", f"{stage}_timeout"
        if reason := LIMITS.get(str(((result and result.model_extra) or {}).get("limit"))):
            return "limit", reason
        if result and result.return_code:
            death = "signal" if result.return_code < 0 else "exit"
            return "user", "compile_error" if stage == "compile" else death
    return "none", ""


def _judged(given: dict[str, Any]) -> tuple[ErrorKind, str]:
    # A field that was itself refused is absent; the refusal is raised in a moment.
    status = given.get("status", "SandboxError")
    return kind_of_end(status, given.get("compile_result"), given.get("run_result"))


class CodeResult(Message):
    """How a program ended, whose fault that was, and where the time went.

    `error_kind` names the fault: `none` (it ran and returned 0), `user` (it failed), or
    `limit` (it hit a limit of time, memory or output). `infrastructure` means that the system
    failed: mask the sample, its reward is not 0. `error_reason` is a word for machines.
    """

    REFUSAL: ClassVar[Callable[[str], PenstockError]] = staticmethod(unreadable)

    status: Status
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = Field(default_factory=dict)
    refused_files: dict[str, str] = Field(
        default_factory=dict, description="Files that could not be fetched, and why."
    )

    error_kind: ErrorKind = Field(default_factory=lambda given: _judged(given)[0])
    error_reason: str = Field(default_factory=lambda given: _judged(given)[1])
    isolation: str = Field(default="unknown", description="The level the sandbox says it ran at.")
    attempts: int = Field(default=1, ge=0)
    queued_seconds: float = Field(default=0.0, description="From enqueueing to a worker.")
    permit_seconds: float = Field(default=0.0, description="Waiting at the gate.")
    backoff_seconds: float = Field(default=0.0, description="Between attempts, no permit held.")
    running_seconds: float = Field(default=0.0, description="In the sandbox, and on the way.")
    correlation_id: str = ""

    @field_validator("message", "files", mode="before")
    @classmethod
    def _null_is_nothing(cls, given: Any, field: ValidationInfo) -> Any:
        # Servers that speak upstream's contract differ in what they leave null.
        return given if given is not None else {"message": "", "files": {}}[str(field.field_name)]

    @property
    def ok(self) -> bool:
        """Whether the program ran to its end and returned 0."""
        return self.error_kind == "none"

    @property
    def stdout(self) -> str:
        """The text that the program printed; the compiler, if that was all that ran."""
        last = self.run_result or self.compile_result
        return (last and last.stdout) or ""

    @property
    def stderr(self) -> str:
        """The text that was written to stderr, by the same rule as `stdout`."""
        last = self.run_result or self.compile_result
        return (last and last.stderr) or ""

    def bounded(self, limit: int = OUTPUT_LIMIT) -> Self:
        """The result with each text at most `limit` bytes long, the cut marked."""
        return self.model_copy(
            update={
                "message": truncate(self.message, limit)[0],
                "compile_result": self.compile_result and self.compile_result.bounded(limit),
                "run_result": self.run_result and self.run_result.bounded(limit),
            }
        )

    @classmethod
    def of_failure(cls, failure: SandboxFailure) -> "CodeResult":
        """The result to report when attempts have run out."""
        known = failure.result or CodeResult(status="SandboxError")
        return known.model_copy(
            update={
                "status": "SandboxError",
                "message": known.message or str(failure),
                "error_kind": "infrastructure",
                "error_reason": failure.reason,
            }
        )
