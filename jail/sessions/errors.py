"""The errors of a session sandbox of this machine. A command's own failure is its exit.

PenstockError
└── SandboxError
    └── SessionError
        ├── SessionGone        there is none of that name: it ended, or was never opened
        ├── SessionExists      the name is taken
        ├── SessionRefused     this request can never work here; says what would
        ├── TooManySessions    no room now; what ends makes some
        ├── ProcessGone        no process of that number or tag is known
        └── SessionTrouble     our side failed; says nothing of the session

Files raise what `open` raises: `FileNotFoundError`, `PermissionError`, … all of them `OSError`.
A call that a program of the session has killed or stopped raises `InterruptedError`.
"""

from jail.errors import SandboxError


class SessionError(SandboxError):
    """The root of this room's errors."""


class SessionGone(SessionError):
    """The session ended, or was never opened."""


class SessionExists(SessionError):
    """A living session has this name."""


class SessionRefused(SessionError):
    """The request cannot be met at this level of isolation, or makes no sense."""


class TooManySessions(SessionError):
    """The machine keeps as many as it may, or a session runs or watches as much as it may."""


class ProcessGone(SessionError):
    """No process of that number or tag is known in this session."""


class SessionTrouble(SessionError):
    """The hub of the sessions failed, or could not be started."""
