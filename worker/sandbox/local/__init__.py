"""The embedded sandbox. It is `jail`; this name stays for programs that use it."""

from jail import (
    CAPS,
    DEFAULTS,
    Jails,
    LimitRefused,
    Limits,
    LocalSandbox,
    Outcome,
    Program,
    SandboxError,
    SandboxUnavailable,
    ServerConfig,
    Step,
)

__all__ = [
    "CAPS",
    "DEFAULTS",
    "Jails",
    "LimitRefused",
    "Limits",
    "LocalSandbox",
    "Outcome",
    "Program",
    "SandboxError",
    "SandboxUnavailable",
    "ServerConfig",
    "Step",
]
