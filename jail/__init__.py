"""The embedded sandbox runs hostile programs on this machine, without Docker. A program reaches
nothing but its jail, and nothing of it outlives its end.

What starts programs is imported when it is first named, with the models of requests.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily
from jail.errors import LimitRefused, SandboxError, SandboxUnavailable
from jail.limits import Limits
from jail.outcome import Outcome

if TYPE_CHECKING:
    from jail.sandbox import LocalSandbox

__all__ = [
    "LimitRefused",
    "Limits",
    "LocalSandbox",
    "Outcome",
    "SandboxError",
    "SandboxUnavailable",
]

__getattr__ = _lazily(__name__, {"Jails": "jail.jails", "LocalSandbox": "jail.sandbox"})
