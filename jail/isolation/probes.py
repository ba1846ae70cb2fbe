"""Attacks, one each, that succeed for an ordinary process and must fail in a jail.

The start-up self-test runs them all in one jail. The abuse tests run each alone,
and first outside the jail, where it must succeed: else its refusal means nothing.
A probe's code attacks `goal` and raises where it is refused.
"""

import json
from dataclasses import dataclass
from typing import Any

from jail.isolation.levels import Level

_LIBRARY = """
import ctypes, fcntl, json, os, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def needs(condition):
    if not condition:
        raise PermissionError("in vain")
def syscall(number, *arguments):
    # An int would fill half of its place, and leave in the other half what was there.
    whole = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *whole)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
def clone(*arguments):
    return syscall(either(56, 220), *arguments)
def either(x86, arm):
    return x86 if os.uname().machine == "x86_64" else arm
def status(field):
    with open("/proc/self/status") as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ":"))
def leads_to_a_secret(descriptor):
    link = f"/proc/self/fd/{descriptor}"
    return os.path.islink(link) and "secret" in os.readlink(link)
def began(pid):
    # By the kernel's clock; None if this process may not know.
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except OSError:
        return None
def in_memory(path):
    at = os.memfd_create("program")
    with open(path, "rb") as source, open(at, "wb", closefd=False) as target:
        target.write(source.read())
    needs(os.spawnv(os.P_WAIT, f"/proc/self/fd/{at}", ["program"]) == 0)
def is_in_memory():
    room = ctypes.create_string_buffer(1 << 16)
    at = ctypes.addressof(room) + 0xFFFF & ~0xFFFF
    syscall(either(27, 232), at, 1, ctypes.create_string_buffer(1))
def command(at, *arguments):
    syscall(either(72, 25), at, *arguments)
def lease_a_file():
    path = os.environ.get("TMPDIR", "/tmp") + f"/leased-{os.getpid()}"
    at = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL)
    os.unlink(path)
    command(at, 1024, 0)
def meets_a_lock(path):
    at = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
def file_handle(path):
    room = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128))
    syscall(either(303, 264), -100, path.encode(), room, ctypes.byref(ctypes.c_int()), 0)
"""


@dataclass(frozen=True)
class Probe:
    """A probe is one attack. `provable` if an unprivileged process outside can do it, safely,
    anywhere."""

    name: str
    code: str
    provable: bool = True
    level: Level | None = None  # the only one that is held to it


_IN_A_CHILD = "needs(os.waitstatus_to_exitcode(os.wait()[1]) == 0)"
_DEVICES = "null zero full random urandom fd stdin stdout stderr shm ptmx pts"

_THE_RUNNERS_OWN = {
    "connect to a host port": "socket.create_connection(('127.0.0.1', goal['port']), 5)",
    "connect to an abstract socket": "socket.socket(1).connect('\\0' + goal['abstract'])",
    "connect to a socket file": "socket.socket(1).connect(goal['socket'])",
    "read the runner's file": "open(goal['secret']).read()",
    "write beside the runner's file": "open(goal['secret'] + '.mine', 'w').write('x')",
    "change the mode of the runner's file": "os.chmod(goal['secret'], 0o600)",
    "change the times of the runner's file": "os.utime(goal['secret'])",
    "link the runner's file": "os.link(goal['secret'], goal['secret'] + '.too')",
    "rename the runner's file": "os.rename(goal['spare'], goal['spare'] + '.gone')",
    "read the runner's environment": "open(f'/proc/{goal[\"pid\"]}/environ').read()",
    "see the runner's variables": "needs('PENSTOCK_PROBE_SECRET' in os.environ)",
    "use an inherited descriptor": "needs(any(map(leads_to_a_secret, range(3, 64))))",
    # The runner is number 1 in a container of its own, and so is init in the jail.
    "signal the runner": "os.kill(goal['pid'], 0); "
    "needs(began(goal['pid']) in (None, goal['began']))",
    "see other processes": "needs(sum(name.isdigit() for name in os.listdir('/proc')) > 2)",
    "see /sys": "needs(os.listdir('/sys'))",
    "see the host's devices": f"needs(set(os.listdir('/dev')) - set('{_DEVICES}'.split()))",
    "see the host's terminals": "needs(os.listdir('/dev/pts'))",
}

# Outside the jail another process of the same user stands for the supervisor.
_ITS_SUPERVISORS = {
    "attach to the supervisor": "needs(libc.ptrace(0x4206, supervisor, 0, 0) == 0)",
    "read the supervisor's memory": "open(f'/proc/{supervisor}/mem', 'rb')",
    "list the supervisor's descriptors": "os.listdir(f'/proc/{supervisor}/fd')",
    "limit the supervisor": "resource.prlimit(supervisor, 7, (900, 900))",
    "walk through the supervisor's root": "os.listdir(f'/proc/{supervisor}/root/')",
    "slow the supervisor down": "os.setpriority(os.PRIO_PROCESS, supervisor, 19)",
    "slow all of the user's processes down": "os.setpriority(os.PRIO_USER, 0, 19)",
    "put off all of the user's reads and writes": "syscall(either(251, 30), 3, 0, 2 << 13 | 7)",
    "pin the supervisor": "os.sched_setaffinity(supervisor, os.sched_getaffinity(0))",
    "take the supervisor's descriptor": "syscall(438, os.pidfd_open(supervisor), 0, 0)",
}

_THE_KERNELS = {
    "make a user namespace": f"os.fork() or syscall(either(272, 97), 0x10000000); {_IN_A_CHILD}",
    "clone into a user namespace": "clone(0x10000011, 0, 0, 0, 0) or os._exit(0)",
    "clone3": "syscall(435, struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0), 64) or os._exit(0)",
    "mount": "needs(libc.mount(b'x', b'/mnt', b'tmpfs', 0, b'') == 0)",
    # With what is mounted below it: an ordinary user gets no copy of a tree without that.
    "open a mount tree": "syscall(428, -100, b'/tmp', 0x8001)",
    "change the root": f"os.fork() or syscall(either(161, 51), b'/tmp'); {_IN_A_CHILD}",
    "enter a namespace": "syscall(either(308, 268), os.open('/proc/self/ns/uts', 0), 0)",
    "rename the host": "socket.sethostname(socket.gethostname())",
    "io_uring": "syscall(425, 4, ctypes.create_string_buffer(120))",
    "use up the machine's asynchronous reads": "syscall(either(206, 0), 1, bytes(8))",
    "userfaultfd": "syscall(either(323, 282), 1)",
    "add a key": "syscall(either(248, 217), b'user', b'probe', b'x', 1, -2)",
    "read kernel keys": "needs(open('/proc/keys').read())",
    "read the keyring": "syscall(either(250, 219), 0, -2, 1)",
    "trace": f"os.fork() or needs(libc.ptrace(0, 0, 0, 0) == 0); {_IN_A_CHILD}",
    "read memory by process": "syscall(either(310, 270), os.getpid(), None, 0, None, 0, 0)",
    "name a file by handle": "file_handle('/tmp')",
    "switch off address randomisation": "syscall(either(135, 92), 0x0040000)",
    "memory beyond the limits: memfd": "os.memfd_create('x')",
    "run a program from memory": "in_memory('/bin/true')",
    "memory beyond the limits: System V": "syscall(either(29, 194), 0, 4096, 0o1600)",
    "use up the user's file watches": "needs(libc.inotify_init1(0) >= 0)",
    # Of the machine: each who reads there pays for each who watches, and is seen by him.
    "watch a folder that others read": "command(os.open('/usr', 0), 1026, 0x20)",
    "hold up who opens a file": "lease_a_file()",
    "learn what others have read": "is_in_memory()",
    "list file locks, and stop the machine's meanwhile": "at = os.open('/usr', 0); "
    "needs(libc.flock(at, 1) == 0 and open('/proc/locks').read())",
    "a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "reach another network": "socket.socket(2, socket.SOCK_DGRAM).connect(('192.0.2.1', 9))",
    "a packet socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    "change a kernel setting": "open('/proc/sys/net/ipv4/ip_forward', 'w').write('0')",
    "be spared when memory runs out": "open('/proc/self/oom_score_adj', 'w').write('1000')",
    "write to its own /proc": "open('/proc/self/comm', 'w').write('x')",
    "run as root": "needs(os.geteuid() == 0)",
    "hold a capability": "needs(status('CapEff') != '0' * 16)",
    "gain rights by exec": "needs(status('NoNewPrivs') == '0')",
}

MEETS_LOCKS = "meet the locks of the machine's files"
_OF_NAMESPACES_ALONE = {
    # No-new-privs makes the bits harmless at every level; these mounts deny them once more.
    "honour a setuid bit": "needs(not os.statvfs('/usr').f_flag & os.ST_NOSUID)",
    MEETS_LOCKS: "needs(meets_a_lock(goal['locked']))",
}

# With namespaces there is none of the host's to be found by its number.
_OF_LANDLOCK_ALONE = {
    "ask about a process of the host": "os.pidfd_open(supervisor)",
}

# Whether an unprivileged process can do these depends on the machine, or trying is not safe:
# docs/inside/sandbox-security.md has the reason for each.
_NOT_PROVABLE = {
    "a vsock socket": "socket.socket(40, socket.SOCK_STREAM)",
    "perf events": "syscall(either(298, 241), bytes(128), 0, -1, -1, 0)",
    "make a device": "os.mknod('/tmp/device', 0o20600, os.makedev(1, 3))",
    "change the interpreter": "os.open(os.__file__, os.O_RDWR)",
    "have its memory dumped": "needs(resource.getrlimit(resource.RLIMIT_CORE)[1] > 1)",
    "bpf": "syscall(either(321, 280), 0, bytes(128), 128)",
    "set the core dump handler": "open('/proc/sys/kernel/core_pattern', 'a')",
    "press a magic key": "needs(os.access('/proc/sysrq-trigger', os.W_OK))",
    "write to the system": "open('/usr/probe', 'w')",
    "read the shadow passwords": "open('/etc/shadow')",
}

_GROUPS: list[tuple[dict[str, str], Level | None]] = [
    (_THE_RUNNERS_OWN, None),
    (_ITS_SUPERVISORS, None),
    (_THE_KERNELS, None),
    (_OF_NAMESPACES_ALONE, "ns"),
    (_OF_LANDLOCK_ALONE, "landlock"),
    (_NOT_PROVABLE, None),
]
PROBES = [
    Probe(name, code, provable=group is not _NOT_PROVABLE, level=level)
    for group, level in _GROUPS
    for name, code in group.items()
]


def at(level: Level) -> list[Probe]:
    """The attacks that must fail at this level."""
    if level == "none":
        return []  # nothing would stop it
    return [probe for probe in PROBES if probe.level in (None, level)]


def script(probes: list[Probe], goal: dict[str, Any]) -> str:
    """A program that tries each and prints one JSON line about it."""
    attempts = "\n".join(_attempt(probe) for probe in probes)
    start = f"""{_LIBRARY}
goal = json.loads({json.dumps(goal)!r})
supervisor = goal.get("supervisor") or os.getppid()
"""
    return f"{start}\n{attempts}\n"


def _attempt(probe: Probe) -> str:
    return f"""
pid = os.getpid()
try:
    exec({probe.code!r})
    said = None
except BaseException as problem:
    said = f"{{type(problem).__name__}}: {{problem}}"
if os.getpid() != pid:
    os._exit(said is not None and said != "ChildProcessError: [Errno 10] No child processes")
print(json.dumps([{probe.name!r}, said]), flush=True)
"""


def read(output: bytes) -> dict[str, str | None]:
    """Name to the reason for the refusal, or None where the attack got through."""
    return dict(json.loads(line) for line in output.splitlines())
