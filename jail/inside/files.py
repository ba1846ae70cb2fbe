"""Files into the jail before the program, and out of it after: both from inside.

Names are resolved on the jail's own root as its own user, or kept below the program's own
folder: the worst that a name or a link can reach is the program's own scratch space.
"""

import errno
import fcntl
import fnmatch
import os
import stat

from .place import Place, Refused

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MOST_MADE = 4096
_SEALS = 1 | 2 | 4 | 8  # no further seal, no shrink, no grow, no write


def write(place: Place, names: list[str], contents: list[bytes]) -> None:
    """Create each file, with its folders; relative names are in the program's folder.

    A name may lead to what init has open, or to a device: those are on other file systems.
    """
    scratch = os.stat(place.scratch).st_dev if names else 0
    for name, content in zip(names, contents, strict=True):
        try:
            path = place.target(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _write(path, scratch, content)
        except (OSError, ValueError, RecursionError, Refused) as problem:  # the third by its depth
            if isinstance(problem, OSError) and problem.errno in _FULL and not place.limited:
                raise  # our disk, not the request's
            raise Refused(
                f"files: {name!r} cannot be written ({problem}); "
                f"relative names and names below {place.writable} can"
            ) from None


def sealed(stdin: bytes) -> int:
    """A file that the program reads as its standard input, and cannot make any larger."""
    at = os.memfd_create("stdin", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    with open(at, "wb", closefd=False) as file:
        file.write(stdin)
    os.lseek(at, 0, os.SEEK_SET)
    fcntl.fcntl(at, fcntl.F_ADD_SEALS, _SEALS)
    return at


def matching(place: Place, patterns: list[str]) -> tuple[list[str], dict[str, str]]:
    """The paths of all files below the program's own folder, however deep, whose last name matches
    one of these patterns. Of too many, none, and why."""
    found: list[str] = []
    for folder, _, names in os.walk(place.home) if patterns else ():
        inner = os.path.relpath(folder, place.home)
        made = {name for pattern in patterns for name in fnmatch.filter(names, pattern)}
        found += (os.path.normpath(os.path.join(inner, name)) for name in made)
        if len(found) > _MOST_MADE:
            return [], {", ".join(patterns): f"more than {_MOST_MADE} files were made"}
    return sorted(found), {}


def fetch(place: Place, names: list[str], limit: int) -> tuple[dict[str, bytes], dict[str, str]]:
    """Read what the program left under these names, and say why others are not given.

    Only regular files in the scratch space: not devices, FIFOs, /proc, or the
    read-only system. A missing file is simply absent.
    """
    scratch = os.stat(place.scratch).st_dev if names else 0
    found: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for name in dict.fromkeys(names):
        try:
            content = _read(place.source(name), scratch, limit)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, Refused) as problem:
            refused[name] = str(problem)
            continue
        limit -= len(content)
        found[name] = content
    return found, refused


def _write(path: str, scratch: int, content: bytes) -> None:
    with open(os.open(path, _NEW, 0o666), "wb") as file:
        found = os.fstat(file.fileno())
        if found.st_dev != scratch or not stat.S_ISREG(found.st_mode):
            raise Refused("not a regular file in a folder that the program may write to")
        file.truncate()
        file.write(content)


def _read(path: str, scratch: int, limit: int) -> bytes:
    at = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        found = os.fstat(at)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("not a regular file")
        if found.st_dev != scratch:
            raise Refused("not in a folder that the program may write to")
        if found.st_size > limit:
            raise Refused(f"{found.st_size} bytes, more than the {limit} left to fetch")
        return os.pread(at, limit, 0) if found.st_size else b""
    finally:
        os.close(at)
