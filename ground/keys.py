"""How keys in Redis are named: `penstock:<kind>:{<name>}:<part>`.

All keys of one gate, one buffer task or one registry share the hash tag in braces. So a script over
them works on a Cluster. `docs/reference/keys.md` lists every key; a test holds the list and the
code together.
"""

import os
import re
import socket

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}")


def check_name(name: str, what: str) -> str:
    """Refuse a name that could not stand inside a key's hash tag."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} is named with 1 to 128 letters, digits and . _ : / @ -, "
            f"beginning with a letter or digit, not {name!r}"
        )
    return name


def tagged(kind: str, name: str, part: str = "") -> str:
    """The key of one part of a named thing, e.g. `penstock:gate:{code}:leases`."""
    key = f"penstock:{kind}:{{{name}}}"
    return f"{key}:{part}" if part else key


def new_owner() -> str:
    """The name of what this process does for itself, `host:pid:random`: it says where to look,
    and no other has it, before or after."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"


def check_run(run: str) -> str:
    """Refuse a run's name that could be mistaken for the names of things in it."""
    if "/" in run:
        raise ValueError(f"a run is named without /, not {run!r}")
    return check_name(run, "a run")


def in_run(run: str, name: str) -> str:
    """The name of a thing that belongs to one run only."""
    return f"{check_run(run)}/{name}"
