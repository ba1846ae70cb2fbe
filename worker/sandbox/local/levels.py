"""What stands in the way of isolation on this machine, and what its operator can do about it."""

import os
from pathlib import Path

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


def explain(level: str, problem: str) -> str:
    """One message: what failed, which setting is behind it, and the other ways to go."""
    refused_by_kernel = any(call in problem for call in _CALLS)
    remedies = _remedies() if refused_by_kernel else []
    remedies.append("name a remote sandbox in SANDBOX_FUSION_URL")
    return (
        f"sandbox level {level!r} is unavailable: {problem}. Nothing weaker is taken in its "
        f"place. What can be done: {'; '.join(remedies)}. See docs/sandbox.md"
    )


def _remedies() -> list[str]:
    remedies = [
        remedy for name, (bad, remedy) in _SETTINGS.items() if _read(f"/proc/sys/{name}") == bad
    ]
    if "\nSeccomp:\t2" in _read("/proc/self/status"):
        remedies.append(_CONTAINER)
    if not remedies:
        remedies.append(f"use Linux 5.14 or newer with user namespaces (this is {_release()})")
    return remedies


def _release() -> str:
    system = os.uname()
    return f"{system.sysname} {system.release}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""  # a setting that this kernel does not have restricts nothing
