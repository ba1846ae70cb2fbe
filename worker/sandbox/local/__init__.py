"""The embedded sandbox: hostile programs on this machine, without Docker."""

from worker.sandbox.local.errors import LimitRefused, SandboxError, SandboxUnavailable
from worker.sandbox.local.jails import Jails
from worker.sandbox.local.launch import ServerConfig
from worker.sandbox.local.limits import CAPS, DEFAULTS, Limits
from worker.sandbox.local.outcome import Outcome, Program, Step
from worker.sandbox.local.provider import LocalSandbox

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
