"""The embedded sandbox: hostile programs on this machine, without Docker."""

from jail.errors import LimitRefused, SandboxError, SandboxUnavailable
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.limits import CAPS, DEFAULTS, Limits
from jail.outcome import Outcome, Program, Step
from jail.sandbox import LocalSandbox

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
