"""What this kernel lets an ordinary user do, tried in a process of its own.

Run as `python -I kernel_probe.py`; it gives up root first if it has it, and prints
one JSON object. On the standard library alone. Features are used, not looked up:
a kernel may announce namespaces and then refuse the mount inside them.
"""

import contextlib
import ctypes
import errno
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

NOBODY = 65534
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS = 0x20000, 0x2000000, 0x4000000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = (
    0x8000000,
    0x10000000,
    0x20000000,
    0x40000000,
)
EVERY_NAMESPACE = (
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    | CLONE_NEWCGROUP
)  # fmt: skip
MS_REC, MS_PRIVATE = 0x4000, 0x40000
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2
SYS_LANDLOCK_CREATE_RULESET, LANDLOCK_VERSION = 444, 1

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    found: dict[str, object] = cgroups()
    if os.getuid() == 0:
        become_nobody()
    found["landlock"] = landlock()
    found["seccomp"] = attempt(seccomp)
    found["namespaces"] = attempt(namespaces)
    print(json.dumps(found))


def become_nobody() -> None:
    with contextlib.suppress(OSError):  # root of a container that knows no other user
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        # A process that changed its user may not write its own maps unless it is dumpable again.
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def attempt(trial: Callable[[], None]) -> str:
    """Empty if it worked in a forked child; else what failed and the errno's name."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            trial()
        except OSError as refusal:
            said = f"{refusal.filename or trial.__name__}: {errno.errorcode[refusal.errno or 0]}"
        except BaseException as odd:  # noqa: BLE001 - the parent must hear of it, whatever it is
            said = repr(odd)
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said


def namespaces() -> None:
    user, group = os.getuid(), os.getgid()
    checked("unshare", libc.unshare(EVERY_NAMESPACE))
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {user} 1"),
        ("gid_map", f"0 {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(line)
    checked("mount", libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    checked("mount of a tmpfs", libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
    # In a new PID namespace the first child is its init; the kernel may refuse it.
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(errno.EPERM, "", "pid namespace")


def seccomp() -> None:
    # Without a program the kernel answers EFAULT if it has filters, EINVAL if not.
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0)
    if ctypes.get_errno() != errno.EFAULT:
        raise OSError(ctypes.get_errno(), "", "prctl")


def landlock() -> int:
    """The ABI version, or 0."""
    return max(0, int(libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION)))


def cgroups() -> dict[str, object]:
    """Which hierarchy limits memory and processes, and whether we may make a group in it."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    own = (line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines())
    paths = {controllers: path for _, controllers, path in own}
    for _, place, kind, options, *_ in mounts:
        if kind == "cgroup2":
            group = Path(place + paths.get("", "/"))
            with contextlib.suppress(OSError):  # a group that is not visible from here
                if {"memory", "pids"} <= set((group / "cgroup.controllers").read_text().split()):
                    return {"cgroup": "v2", "cgroup_writable": may_make_a_group(group)}
        if kind == "cgroup" and "memory" in options.split(","):
            group = Path(place + paths.get("memory", "/"))
            group = group if group.is_dir() else Path(place)
            return {"cgroup": "v1", "cgroup_writable": may_make_a_group(group)}
    return {"cgroup": "", "cgroup_writable": False}


def may_make_a_group(parent: Path) -> bool:
    try:
        os.rmdir(tempfile.mkdtemp(prefix="penstock-doctor-", dir=parent))
    except OSError:
        return False
    return True


def checked(what: str, result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), "", what)


if __name__ == "__main__":
    main()
