"""Session sandboxes of this machine: one hub keeps many, and any process speaks with them. A
session ends with its hub, its time or its caller's wish."""

from jail.sessions.api import (
    Change,
    CommandRequest,
    Entry,
    Exit,
    Finished,
    Network,
    Output,
    Process,
    ProcessInfo,
    Session,
    SessionInfo,
    SessionRequest,
    Sessions,
    Terminal,
    Usage,
)
from jail.sessions.client import LocalSessions
from jail.sessions.errors import (
    ProcessGone,
    SessionError,
    SessionExists,
    SessionGone,
    SessionRefused,
    SessionTrouble,
    TooManySessions,
)

__all__ = [
    "Change",
    "CommandRequest",
    "Entry",
    "Exit",
    "Finished",
    "LocalSessions",
    "Network",
    "Output",
    "Process",
    "ProcessGone",
    "ProcessInfo",
    "Session",
    "SessionError",
    "SessionExists",
    "SessionGone",
    "SessionInfo",
    "SessionRefused",
    "SessionRequest",
    "SessionTrouble",
    "Sessions",
    "Terminal",
    "TooManySessions",
    "Usage",
]
