"""The levels of isolation, and what stands in the way of one on this machine."""

import os
from pathlib import Path
from typing import Literal

from jail.errors import SandboxUnavailable
from jail.inside import landlock

# ns: namespaces, seccomp, limits. landlock: weaker, for where namespaces are forbidden.
# none: nothing. The last two are taken only when they are named.
Level = Literal["ns", "landlock", "none"]

UNCONFINED = (
    "PENSTOCK_SANDBOX_LEVEL=none: programs run UNCONFINED, with this machine's network and "
    "files, as an ordinary user; for programs that you trust as you trust your own"
)
_SETTINGS = {
    "user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=15000"),
    "kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    "kernel/apparmor_restrict_unprivileged_userns": (
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that "
        "allows userns for this interpreter",
    ),
}
_CALLS = ("unshare", "clone", "mount", "pivot_root", "seccomp")
_CONTAINER = (
    "a container's seccomp profile is in force; start the container with --security-opt "
    "seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
)
_MASKED = (
    "the container masks parts of /proc; start it with --security-opt systempaths=unconfined, or "
    "in Kubernetes with procMount: Unmasked and hostUsers: false (docs/guide/kubernetes.md)"
)
_LANDLOCK = (
    "set PENSTOCK_SANDBOX_LEVEL=landlock, which this kernel has: weaker, without namespaces; "
    "docs/inside/sandbox-security.md says what it does not contain"
)
_UNREACHABLE = (
    "name an interpreter that an ordinary user can execute in PENSTOCK_SANDBOX_PYTHON, such as "
    "/usr/bin/python3, keep Penstock where that user can read it, and let TMPDIR be a folder that "
    "it may write to"
)
_NO_SUCH_MODULE = (
    "install it for the interpreter that programs run in, or take it out of the modules to preload"
)
_NO_SUCH_PYTHON = "name a Python of 3.10 or newer in PENSTOCK_SANDBOX_PYTHON"
_NO_SUCH_USER = (
    "start the sandbox as an ordinary user, or name in PENSTOCK_SANDBOX_UID a user that this "
    "container knows, and give its root CAP_SETUID and CAP_SETGID"
)


def unavailable(level: Level, problem: str) -> SandboxUnavailable:
    """The error that says what failed, which setting is behind it, and the other ways to go."""
    remedies = _remedies(level, problem)
    remedies.append("name a remote sandbox in PENSTOCK_SANDBOX_FUSION_URL")
    return SandboxUnavailable(
        f"sandbox level {level!r} is unavailable: {problem}",
        f"Nothing weaker is taken in its place. What can be done: {'; '.join(remedies)}. "
        f"See docs/guide/sandbox-containers.md",
    )


def _remedies(level: Level, problem: str) -> list[str]:
    if "PENSTOCK_SANDBOX_PRELOAD" in problem:
        return [_NO_SUCH_MODULE]
    if "cannot be run" in problem:
        return [_NO_SUCH_PYTHON]
    if level == "ns" and any(call in problem for call in _CALLS):
        weaker = [_LANDLOCK] if landlock.abi() >= landlock.LEAST_ABI else []
        return _for_namespaces(problem) + weaker
    if "cannot become uid" in problem:
        return [_NO_SUCH_USER]
    if "landlock" in problem:
        return [
            f"use Linux 6.12 or newer (this is {_release()}) with landlock among the names in "
            f"/sys/kernel/security/lsm; the kernel's lsm= parameter adds it"
        ]
    if level != "ns" and "Permission denied" in problem:
        return [_UNREACHABLE]
    return []


def _for_namespaces(problem: str) -> list[str]:
    remedies = [
        remedy for name, (bad, remedy) in _SETTINGS.items() if _read(f"/proc/sys/{name}") == bad
    ]
    if "\nSeccomp:\t2" in _read("/proc/self/status"):
        remedies.append(_CONTAINER)
    elif "mount proc" in problem:
        remedies.append(_MASKED)
    return remedies or [f"use Linux 5.14 or newer with user namespaces (this is {_release()})"]


def _release() -> str:
    system = os.uname()
    return f"{system.sysname} {system.release}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""  # a setting that this kernel does not have restricts nothing
