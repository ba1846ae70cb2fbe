"""The embedded sandbox: hostile programs on this machine, without Docker.

What starts programs is imported when it is first named, with the models of requests.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily
from jail.errors import LimitRefused, SandboxError, SandboxUnavailable
from jail.launch import ServerConfig
from jail.limits import CAPS, DEFAULTS, Limits
from jail.outcome import Outcome, Program, Step

if TYPE_CHECKING:
    from jail.jails import Jails
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

__getattr__ = _lazily(__name__, {"Jails": "jail.jails", "LocalSandbox": "jail.sandbox"})
