"""Session sandboxes are started under one fleet-wide cap, registered before they are made, and
ended whatever happens."""

from worker.lifecycle.errors import CommandFailed, SandboxLost, StartFailed, StartRefused
from worker.lifecycle.lifecycle import SandboxLifecycle, SyncLifecycle, open_sandbox
from worker.lifecycle.provider import (
    FILE_ERRORS,
    Command,
    ExecResult,
    FileRefused,
    Kind,
    Provider,
    SandboxRef,
    SandboxSpec,
    Verdict,
)
from worker.lifecycle.sandbox import OpenSandbox, SyncSandbox
from worker.lifecycle.settings import LifecycleSettings

__all__ = [
    "FILE_ERRORS",
    "Command",
    "CommandFailed",
    "ExecResult",
    "FileRefused",
    "Kind",
    "LifecycleSettings",
    "OpenSandbox",
    "Provider",
    "SandboxLifecycle",
    "SandboxLost",
    "SandboxRef",
    "SandboxSpec",
    "StartFailed",
    "StartRefused",
    "SyncLifecycle",
    "SyncSandbox",
    "Verdict",
    "open_sandbox",
]
