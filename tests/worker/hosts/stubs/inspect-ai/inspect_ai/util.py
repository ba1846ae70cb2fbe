from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
registered: dict[str, Any] = {}
current: ContextVar[Any] = ContextVar("sandbox")


def sandboxenv(name: str) -> Callable[[T], T]:
    def register(kind: T) -> T:
        registered[name] = kind
        return kind

    return register


def sandbox() -> Any:
    return current.get()


class SandboxEnvironment:
    def as_type(self, kind: type[T]) -> T:
        if not isinstance(self, kind):
            raise TypeError(f"{self!r} is no {kind.__name__}")
        return self


class SandboxEnvironmentLimits:
    MAX_EXEC_OUTPUT_SIZE = 10 << 20
    MAX_EXEC_OUTPUT_SIZE_STR = "10 MiB"
    MAX_READ_FILE_SIZE = 100 << 20
    MAX_READ_FILE_SIZE_STR = "100 MiB"


@dataclass
class ExecResult(Generic[T]):
    success: bool
    returncode: int
    stdout: T
    stderr: T


class SandboxUnavailableError(RuntimeError): ...


class SandboxUserUnsupportedError(RuntimeError): ...


class OutputLimitExceededError(Exception):
    def __init__(self, limit_str: str, truncated_output: str | None) -> None:
        super().__init__(f"The sandbox output stream limit of {limit_str} was exceeded.")
        self.truncated_output = truncated_output
