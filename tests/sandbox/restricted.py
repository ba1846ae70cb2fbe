"""Start a sandbox where the kernel or a container forbids it, and print what it says.

`python restricted.py no-namespaces|docker|no-mount`: the restriction is put on this process
alone, in a user namespace of its own or by a system call filter.
"""

import asyncio
import errno
import os
import sys

from tests.sandbox.conftest import config_for
from worker.sandbox.local import Jails, SandboxUnavailable
from worker.sandbox.local.inside import kernel, root, seccomp


def no_namespaces() -> None:
    """What `sysctl user.max_user_namespaces=0` does, for this process's own namespace."""
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        enter_namespace_with_all_users()
    else:
        kernel.unshare(kernel.NEW_USER)
        root.write_maps(0, 0, user, group)
    with open("/proc/sys/user/max_user_namespaces", "w") as setting:
        setting.write("0")


def enter_namespace_with_all_users() -> None:
    """Only a process outside may map more than one user into a namespace."""
    parent, (ready, entered) = os.getpid(), os.pipe()
    helper = os.fork()
    if helper == 0:
        os.read(ready, 1)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{parent}/{name}", "w") as file:
                file.write("0 0 65536")
        os._exit(0)
    kernel.unshare(kernel.NEW_USER)
    os.write(entered, b"x")
    os.waitpid(helper, 0)


def forbid(*calls: str) -> None:
    """A filter like a container's default one, with EPERM for these calls."""
    column, _ = seccomp._ARCHITECTURES[kernel.MACHINE]
    refusal = [seccomp._op(seccomp._RETURN, 0x00050000 | errno.EPERM)]
    rules = {seccomp._REFUSED[call][column]: refusal for call in calls}
    start = [seccomp._op(seccomp._LOAD, seccomp._NUMBER)]
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.install_filter(b"".join(start + seccomp._search(sorted(rules.items()))))


async def main() -> None:
    {
        "no-namespaces": no_namespaces,
        "docker": lambda: forbid("unshare", "mount", "setns", "umount2", "pivot_root"),
        "no-mount": lambda: forbid("mount"),
    }[sys.argv[1]]()
    try:
        async with Jails(config_for("user"), use_cgroups=False):
            print("started")
    except SandboxUnavailable as refusal:
        print(refusal)


asyncio.run(main())
