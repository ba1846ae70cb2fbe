"""Start a sandbox where the kernel or a container forbids it, and print what it says.

`python restricted.py RESTRICTION [LEVEL]`: one of those below is put on this process alone,
in namespaces of its own or by a system call filter.
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 - now: inside, who runs this may not read the library
import os
import sys
import tempfile
from dataclasses import replace

from jail import SandboxUnavailable
from jail.inside import root, syscall_filter, syscalls
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.outcome import Program
from tests.jail.conftest import ORDINARY_USER, config_for

# What its default profile keeps from a container without CAP_SYS_ADMIN, as far as it matters.
DOCKERS = (
    "unshare", "mount", "setns", "umount2", "pivot_root", "mount_setattr", "open_tree",
    "move_mount", "fsopen", "fsmount", "bpf", "perf_event_open", "keyctl", "add_key",
    "userfaultfd", "io_uring_setup",
)  # fmt: skip


def no_namespaces() -> None:
    """What `sysctl user.max_user_namespaces=0` does, for this process's own namespace."""
    enter_user_namespace()
    with open("/proc/sys/user/max_user_namespaces", "w") as setting:
        setting.write("0")


def enter_user_namespace() -> None:
    """Root enters one that has all users; anybody else, one with the own user alone."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        _enter_with_all_users()
    else:
        syscalls.unshare(syscalls.NEW_USER)
        root.write_maps(user, group, user, group)


def _enter_with_all_users() -> None:
    """Only a process outside may map more than one user into a namespace."""
    parent, (ready, entered) = os.getpid(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.read(ready, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{parent}/{name}", "w") as file:
                file.write("0 0 65536")
        os._exit(0)
    syscalls.unshare(syscalls.NEW_USER)
    os.write(entered, b"x")
    os.waitpid(helper, 0)


def forbid(*calls: str, clone: bool = False) -> None:
    """EPERM for these calls, and where asked for `clone` into namespaces; no `clone3` then."""
    column, _ = syscall_filter._ARCHITECTURES[syscalls.MACHINE]
    numbers = {**syscall_filter._REFUSED, "landlock_create_ruleset": (444, 444)}
    refusal = [syscall_filter._op(syscall_filter._RETURN, syscall_filter._EPERM)]
    rules = {numbers[call][column]: refusal for call in calls}
    if clone:
        number = syscall_filter._CLONE[column]
        rules[number] = syscall_filter._judged(column)[number]
        rules[435] = [syscall_filter._op(syscall_filter._RETURN, syscall_filter._ENOSYS)]
    start = [syscall_filter._op(syscall_filter._LOAD, syscall_filter._NUMBER)]
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.Filter(b"".join(start + syscall_filter._search(sorted(rules.items())))).install()


def pod(*, masked: bool = False) -> None:
    """As Kubernetes starts one with `hostUsers: false`, a user that is not root, no capability and
    no privilege to gain; with `procMount: Unmasked`, or without it."""
    _enter_with_all_users()
    syscalls.unshare(syscalls.NEW_NS | syscalls.NEW_PID | syscalls.NEW_NET | syscalls.NEW_IPC)
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc")
    if masked:
        syscalls.mount("/dev/null", "/proc/timer_list", None, syscalls.MS_BIND)
    become_ordinary()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.give_up_capabilities()


def become_ordinary() -> None:
    os.setgroups([])
    os.setresgid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)
    os.setresuid(ORDINARY_USER, ORDINARY_USER, ORDINARY_USER)


def apptainer() -> None:
    """As a cluster's user starts one: a namespace that knows this user alone, with its files
    read-only but for one folder, no capability, and no privilege to gain."""
    if os.geteuid() == 0:
        become_ordinary()
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # else its files in /proc stay root's
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.NEW_USER | syscalls.NEW_NS)
    root.write_maps(user, group, user, group)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
    syscalls.mount("none", "/", None, read_only)
    syscalls.mount("scratch", "/mnt", "tmpfs")
    tempfile.tempdir = "/mnt"
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.give_up_capabilities()


RESTRICTIONS = {
    "no-namespaces": no_namespaces,
    "docker": lambda: forbid(*DOCKERS, clone=True),
    "no-mount": lambda: forbid("mount"),
    "no-landlock": lambda: forbid("landlock_create_ruleset"),
    "pod": pod,
    "apptainer": apptainer,
    "masked-pod": lambda: pod(masked=True),
}


async def start(config: ServerConfig) -> None:
    try:
        async with Jails(config, use_cgroups=False) as jails:
            print("started", (await jails.run(Program("print(6 * 7)"))).stdout)
    except SandboxUnavailable as refusal:
        print(refusal)


def main() -> None:
    level = sys.argv[2] if len(sys.argv) > 2 else "ns"
    config = replace(config_for("user"), level=level)
    RESTRICTIONS[sys.argv[1]]()
    asyncio.run(start(config if os.getuid() == 0 else replace(config, start_as=None)))


if __name__ == "__main__":
    main()
