"""A problem, as E2B's clients take it: a status for REST, a code for RPC, a sentence."""

import errno
from dataclasses import dataclass

from jail.errors import SandboxError, SandboxFailure, SandboxUnavailable, SandboxUnfit
from jail.images import ImageError, ImageUnknown
from jail.sessions import (
    ProcessGone,
    SessionExists,
    SessionRefused,
    TooManySessions,
)

STATUS_OF = {
    "canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504,
    "not_found": 404, "already_exists": 409, "permission_denied": 403, "resource_exhausted": 429,
    "failed_precondition": 400, "unimplemented": 501, "internal": 500, "unavailable": 503,
    "unauthenticated": 401,
}  # fmt: skip


@dataclass
class Problem(Exception):
    """An answer that is no success. `code` is Connect's word."""

    code: str
    message: str
    status: int = 0

    def __post_init__(self) -> None:
        self.status = self.status or STATUS_OF[self.code]


@dataclass
class BoxGone(Exception):
    """There is no such sandbox. Clients learn it from status 502 on every path inside it."""

    box: str


# What may be raised by what a request asks for; everything else is a defect.
EXPECTED = (SandboxError, SandboxFailure, ImageError, OSError, ValueError)


def problem_of(found: Exception) -> Problem:
    """The answer for what one of `EXPECTED` says."""
    said = str(found)
    match found:
        case ImageUnknown():
            return Problem("not_found", said)
        case SessionRefused() | SandboxUnfit() | ImageError() | ValueError():
            return Problem("invalid_argument", said)
        case ProcessGone() | FileNotFoundError():
            return Problem("not_found", said)
        case SessionExists() | FileExistsError():
            return Problem("already_exists", said)
        case TooManySessions() | SandboxFailure() | SandboxUnavailable() | InterruptedError():
            return Problem("unavailable", said)
        case IsADirectoryError() | NotADirectoryError():
            return Problem("invalid_argument", said)
        case PermissionError():
            return Problem("permission_denied", said)
        case OSError() if found.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return Problem("resource_exhausted", said, 507)
        case OSError() if found.errno is not None:
            return Problem("failed_precondition", said)
        case _:
            return Problem("internal", said)
