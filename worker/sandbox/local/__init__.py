"""The embedded sandbox. It is `jail`; this name stays for programs that use it."""

from jail import (
    LimitRefused,
    Limits,
    LocalSandbox,
    Outcome,
    SandboxError,
    SandboxUnavailable,
)

__all__ = [
    "LimitRefused",
    "Limits",
    "LocalSandbox",
    "Outcome",
    "SandboxError",
    "SandboxUnavailable",
]
