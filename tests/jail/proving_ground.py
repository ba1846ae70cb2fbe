"""Run every provable probe unconfined, in namespaces of its own: each must succeed here.

`python proving_ground.py FOLDER` prints the same table as the self-test; the folder is where
its own files go, on a tmpfs that nobody else sees. Nothing it does can reach the machine: it
is root only in a user namespace that ends with it.
"""

import fcntl
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile

from jail.inside import namespaces, root, syscalls
from jail.isolation import probes, selftest

SET_ADDRESS = 0x8916
KEY = (b"user", b"given", b"x", 1, -3)  # to the session, for /proc/keys to have something to show


def other_network() -> None:
    """An address that is not loopback's, on loopback: here it can be reached."""
    address = struct.pack("16sHH4s8x", b"lo:1", socket.AF_INET, 0, bytes([192, 0, 2, 1]))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SET_ADDRESS, address)


def main(scratch: str) -> None:
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(namespaces.NAMESPACES)
    root.write_maps(0, 0, user, group)
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc")
    # Not on /tmp: this file and its interpreter may lie there.
    syscalls.mount("scratch", scratch, "tmpfs")
    tempfile.tempdir = scratch
    namespaces.loopback()
    other_network()
    syscalls.syscall("add_key", 248 if syscalls.MACHINE == "x86_64" else 217, *KEY)
    resource.setrlimit(resource.RLIMIT_NPROC, (256, 256))
    with selftest.goals() as goal, subprocess.Popen(["sleep", "20"]) as supervisor:
        os.environ["PENSTOCK_PROBE_SECRET"] = "1"
        inherited = os.open(goal["secret"], os.O_RDONLY)
        script = probes.script(
            [probe for probe in probes.PROBES if probe.provable],
            {**goal, "supervisor": supervisor.pid},
        )
        with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
            file.write(script)
            file.flush()
            subprocess.run([sys.executable, file.name], pass_fds=[inherited], timeout=30)
        supervisor.kill()


main(sys.argv[1])
