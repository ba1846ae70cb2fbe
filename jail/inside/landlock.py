"""Landlock: which files, connections and processes a program may reach, without namespaces."""

import contextlib
import os
import struct
from collections.abc import Mapping

from . import syscalls

LEAST_ABI = 6
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers everywhere
_VERSION, _PATH_BENEATH = 1, 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL_DEVICE = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_ALL_FILES = (1 << 16) - 1
_ALL_NETWORK = 1 | 2  # bind and connect, of TCP; other sockets are the filter's to refuse
_ALL_SCOPES = 1 | 2  # abstract sockets and signals

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = _ALL_FILES & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL_DEVICE)
USE = READ_FILE | WRITE_FILE | _TRUNCATE  # of a device
_OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE


def abi() -> int:
    """The version of Landlock that this kernel offers; 0 if it is absent or switched off."""
    try:
        return syscalls.syscall("landlock_create_ruleset", _CREATE, None, 0, _VERSION)
    except OSError:
        return 0


def require() -> None:
    if (found := abi()) < LEAST_ABI:
        said = f"ABI {found}" if found else "absent or switched off"
        raise OSError(f"landlock is {said}; ABI {LEAST_ABI} is needed")


def restrict(rights: Mapping[str, int]) -> None:
    """Confine this process to these paths, each with its rights, from now on. no-new-privs is
    set."""
    asked = struct.pack("QQQ", _ALL_FILES, _ALL_NETWORK, _ALL_SCOPES)
    rules = syscalls.syscall("landlock_create_ruleset", _CREATE, asked, len(asked), 0)
    for path, allowed in rights.items():
        with contextlib.suppress(FileNotFoundError):  # what is not there need not be shown
            _add(rules, path, allowed)
    syscalls.syscall("landlock_restrict_self", _RESTRICT, rules, 0)
    os.close(rules)


def _add(rules: int, path: str, allowed: int) -> None:
    at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            allowed &= _OF_A_FILE
        rule = struct.pack("=Qi", allowed, at)
        syscalls.syscall("landlock_add_rule", _ADD, rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(at)
