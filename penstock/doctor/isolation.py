"""What a local sandbox could stand on here: facts about the kernel, each tried."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock.doctor.finding import Finding, ok, warn

_PROBE = Path(__file__).with_name("kernel_probe.py")


def check_isolation() -> Iterator[Finding]:
    if sys.platform != "linux":
        yield warn("local sandbox", f"none on {sys.platform}", "run workers on Linux")
        return
    probe = subprocess.run(  # noqa: S603
        [sys.executable, "-I", _PROBE], capture_output=True, text=True, timeout=30, check=False
    )
    if probe.returncode:
        last = (probe.stderr.strip().splitlines() or ["no word"])[-1]
        yield warn("local sandbox", f"the probe of the kernel failed: {last}", "report it")
        return
    yield from judge(json.loads(probe.stdout))


def judge(found: Mapping[str, Any]) -> Iterator[Finding]:
    """A verdict on each fact of the probe. None fails: a remote sandbox needs none of them."""
    if refused := found["namespaces"]:
        yield warn("namespaces", f"refused to an ordinary user ({refused})", _allow(refused))
    else:
        yield ok("namespaces", "user, mount, pid, net, ipc, uts, cgroup: open to an ordinary user")
    if refused := found["seccomp"]:
        yield warn("seccomp", f"no filters ({refused})", "needs CONFIG_SECCOMP_FILTER")
    else:
        yield ok("seccomp", "filters work")
    if found["landlock"]:
        yield ok("landlock", f"ABI {found['landlock']}")
    else:
        yield warn("landlock", "absent", "add landlock to the kernel's lsm= list (Linux 5.13)")
    yield _cgroup(str(found["cgroup"]), bool(found["cgroup_writable"]))


def _cgroup(version: str, writable: bool) -> Finding:
    if version and writable:
        return ok("cgroup", f"{version}, memory and pids can be limited")
    return warn(
        "cgroup",
        f"{version}, not writable by this user" if version else "no memory controller",
        "memory is then limited by sampling; for exact limits run under systemd with Delegate=yes",
    )


def _allow(refused: str) -> str:
    if "ENOSPC" in refused:
        return "sysctl user.max_user_namespaces=10000"
    if "EACCES" in refused:
        return "sysctl kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu 24.04)"
    return "sysctl kernel.unprivileged_userns_clone=1; in a container, allow unshare and mount"
