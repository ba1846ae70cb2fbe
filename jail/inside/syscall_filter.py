"""The system call filter: what a program may not ask of the kernel, whatever its rights.

Refused calls answer EPERM, families of sockets EAFNOSUPPORT, unknown (newer) calls and `clone3`
ENOSYS, so that libraries fall back. A call in a foreign architecture's numbering kills. The list
has calls that reach the kernel's own workings or other processes. It has those for memory that no
limit counts (memfd, System V IPC). It also has what all who read a shared file have in common: who
watches it, its leases and flags, and what of it is in memory.

What only makes a file last, or drops it from memory, is answered as done. No file of a program
outlives it. A flood of `fsync` on a file that is merely readable would hold up the machine's disk.
"""

import errno
import struct

from . import syscalls

# name: (x86_64, aarch64); None where the architecture does not have it.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "bpf": (321, 280), "perf_event_open": (298, 241),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "unshare": (272, 97),
    "setns": (308, 268), "init_module": (175, 105), "finit_module": (313, 273),
    "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "adjtimex": (159, 171),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    "iopl": (172, None), "ioperm": (173, None), "modify_ldt": (154, None),
    "vhangup": (153, 58), "lookup_dcookie": (212, 18), "uselib": (134, None),
    "_sysctl": (156, None), "sysfs": (139, None), "ustat": (136, None),
    "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "fanotify_init": (300, 262), "fanotify_mark": (301, 263), "memfd_create": (319, 279),
    "memfd_secret": (447, 447), "seccomp": (317, 277), "set_mempolicy_home_node": (450, 450),
    # Write back what the whole machine has changed.
    "sync": (162, 81), "syncfs": (306, 267),
    # One program can use up what the whole machine may have of these.
    "io_setup": (206, 0),
    # Counted against the host's user, whose limits are small.
    "inotify_init": (253, None), "inotify_init1": (294, 26),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mbind": (237, 235),
    # Tell what of a file others have read.
    "mincore": (27, 232), "cachestat": (451, 451),
}  # fmt: skip
# Without namespaces these reach beyond the program too: out of its process group, to what
# the host's other processes share, to files of the same user, which Landlock does not cover.
_REFUSED_ALONE: dict[str, tuple[int | None, int | None]] = {
    "setsid": (112, 157), "setpgid": (109, 154), "socket": (41, 198),
    "shmat": (30, 196), "shmctl": (31, 195), "msgsnd": (69, 189), "msgrcv": (70, 188),
    "msgctl": (71, 187), "semop": (65, 193), "semtimedop": (220, 192), "semctl": (66, 191),
    "mq_open": (240, 180), "mq_unlink": (241, 181),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "lchown": (94, None), "fchown": (93, 55), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    # Tell users and parents of the host's processes, and its mounts.
    "pidfd_open": (434, 434), "statmount": (457, 457), "listmount": (458, 458),
}  # fmt: skip
# Answered as done, and not done.
_IN_VAIN: dict[str, tuple[int, int]] = {
    "fsync": (74, 82), "fdatasync": (75, 83), "sync_file_range": (277, 84),
    "fadvise64": (221, 223),
}  # fmt: skip
_UNKNOWN = ((435, 435),)  # clone3: its flags are in memory, where a filter cannot look
_LAST_KNOWN = 462  # mseal; what came later was not judged and so does not exist

_CLONE, _SOCKET, _SOCKETPAIR, _IOCTL = (56, 220), (41, 198), (53, 199), (16, 29)
_PRLIMIT, _PERSONALITY = (302, 261), (135, 92)
_FCNTL, _MADVISE, _MSYNC, _PRCTL = (72, 25), (28, 233), (26, 227), (157, 167)
_READ_WRITE_FLAGGED = ((327, 286), (328, 287))  # preadv2, pwritev2
_OF_SELF_ONLY = {  # call: what its first arguments must be, to mean the caller alone
    (203, 122): (0,),  # sched_setaffinity
    (144, 119): (0,),  # sched_setscheduler
    (142, 118): (0,),  # sched_setparam
    (314, 274): (0,),  # sched_setattr
    (141, 140): (0, 0),  # setpriority: of a process, not of all that a user has
    (251, 30): (1, 0),  # ioprio_set, likewise
}
_NAMESPACES = 0x7E020080
_UNIX, _INTERNET = 1, (2, 10)
_PROTOCOLS = (0, 6, 17)  # any, tcp, udp
# Stream and datagram, and seqpacket where it is not SCTP, a module that the kernel would load.
_TYPES, _TYPES_OF_UNIX = (1, 2), (1, 2, 5)
_OF_A_TYPE = 0xF  # flags lie above it
# Type into a terminal (TIOCSTI, TIOCLINUX), or have the kernel load a driver for it (TIOCSETD).
_OF_TERMINALS = (0x5412, 0x541C, 0x5423)
# Of terminals, which takes in what any descriptor knows, and of sockets. Those of file systems
# change flags of files that are merely readable; those of other kinds tell of the host.
_KINDS_OF_IOCTL, _OF_A_KIND = (0x5400, 0x8900), 0xFF00
# Descriptors, locks, signals and pipes. Not F_NOTIFY, by which every read of a folder, whoever's
# it is, costs time for each who watches; nor leases, which hold up whoever opens the file next.
_COMMANDS = (*range(12), 15, 16, 17, 36, 37, 38, *range(1027, 1035))
# Out of the page cache (COLD, PAGEOUT), or merged with what others have (MERGEABLE, COLLAPSE).
_ADVICE = (12, 20, 21, 25)
_MEMORY_MERGE = (67,)  # PR_SET_MEMORY_MERGE
_MS_SYNC = 4
_FLAGS_OF_A_CALL = 1 | 2 | 4 | 16  # HIPRI, DSYNC, SYNC, APPEND; not NOWAIT, which tells as mincore

_ALLOW, _KILL, _DONE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EINVAL, _ENOTTY, _EOPNOTSUPP = (
    _DONE | error
    for error in (errno.EPERM, errno.ENOSYS, errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP)
)
# As a kernel without them answers: `useradd` asks for netlink, and ends with any other error.
_NO_FAMILY = _DONE | errno.EAFNOSUPPORT
_LOAD, _RETURN, _JUMP, _AND = 0x20, 0x06, 0x05, 0x54
_JEQ, _JGT, _JGE, _JSET = 0x15, 0x25, 0x35, 0x45
_NUMBER, _ARCH = 0, 4
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _argument(index: int) -> bytes:
    return _op(_LOAD, 16 + 8 * index)  # its low 32 bits; all that we judge fit there


def _only(
    index: int, allowed: tuple[int, ...], part: int = 0xFFFFFFFF, otherwise: int = _EPERM
) -> list[bytes]:
    tests = [_op(_JEQ, value, len(allowed) - at) for at, value in enumerate(allowed)]
    return [_argument(index), _op(_AND, part), *tests, _op(_RETURN, otherwise)]


def _none(index: int, refused: tuple[int, ...], otherwise: int = _EPERM) -> list[bytes]:
    """None of these; the last test jumps over the refusal, the others to it."""
    tests = [_op(_JEQ, value, len(refused) - at) for at, value in enumerate(refused, start=1)]
    tests[-1] = _op(_JEQ, refused[-1], 0, 1)
    return [_argument(index), *tests, _op(_RETURN, otherwise)]


def _judged(column: int) -> dict[int, list[bytes]]:
    """The calls whose arguments decide."""
    allow = [_op(_RETURN, _ALLOW)]
    clone = [_argument(0), _op(_JSET, _NAMESPACES, 0, 1), _op(_RETURN, _EPERM), *allow]
    kinds = _only(1, _KINDS_OF_IOCTL, _OF_A_KIND, otherwise=_ENOTTY)
    rules = {_CLONE[column]: clone, _IOCTL[column]: kinds + _none(1, _OF_TERMINALS) + allow}
    # As a kernel answers that does not know them.
    rules[_FCNTL[column]] = _only(1, _COMMANDS, otherwise=_EINVAL) + allow
    rules[_MADVISE[column]] = _none(2, _ADVICE, otherwise=_EINVAL) + allow
    rules[_PRCTL[column]] = _none(0, _MEMORY_MERGE, otherwise=_EINVAL) + allow
    rules[_MSYNC[column]] = [_argument(2), _op(_JSET, _MS_SYNC, 0, 1), _op(_RETURN, _DONE), *allow]
    for call in _READ_WRITE_FLAGGED:
        others = 0xFFFFFFFF & ~_FLAGS_OF_A_CALL
        rules[call[column]] = _only(5, (0,), others, otherwise=_EOPNOTSUPP) + allow
    known = _only(2, _PROTOCOLS) + allow
    unix = _only(1, _TYPES_OF_UNIX, _OF_A_TYPE) + known
    internet = _only(0, _INTERNET, otherwise=_NO_FAMILY) + _only(1, _TYPES, _OF_A_TYPE) + known
    for call in (_SOCKET, _SOCKETPAIR):
        rules[call[column]] = [_argument(0), _op(_JEQ, _UNIX, 0, len(unix)), *unix, *internet]
    # Limits, niceness and affinity of others: the jail's init runs as the same user.
    rules[_PRLIMIT[column]] = _only(0, (0,)) + allow
    rules[_PERSONALITY[column]] = _only(0, (0, 0xFFFFFFFF)) + allow
    for names, wanted in _OF_SELF_ONLY.items():
        tests = [_only(index, (value,)) for index, value in enumerate(wanted)]
        rules[names[column]] = [line for test in tests for line in test] + allow
    return rules


def _search(rules: list[tuple[int, list[bytes]]]) -> list[bytes]:
    """A binary search by number: the kernel walks it for every call it knows, at each install."""
    if len(rules) == 1:
        number, body = rules[0]
        return [_op(_JEQ, number, 0, len(body)), *body, _op(_RETURN, _ALLOW)]
    middle = len(rules) // 2
    below, above = _search(rules[:middle]), _search(rules[middle:])
    # A condition jumps over 255 instructions at most, a plain jump over any number.
    return [_op(_JGE, rules[middle][0], 0, 1), _op(_JUMP, len(below)), *below, *above]


def program(machine: str = syscalls.MACHINE, alone: bool = False) -> bytes:
    """The filter as an array of BPF instructions; `alone` if there are no namespaces besides it."""
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}")
    column, architecture = _ARCHITECTURES[machine]
    rules = _judged(column)
    refused = [*_REFUSED.values(), *(_REFUSED_ALONE.values() if alone else ())]
    numbers = {number for call in refused if (number := call[column]) is not None}
    rules |= {number: [_op(_RETURN, _EPERM)] for number in numbers}
    rules |= {call[column]: [_op(_RETURN, _DONE)] for call in _IN_VAIN.values()}
    rules |= {call[column]: [_op(_RETURN, _ENOSYS)] for call in _UNKNOWN}
    start = [
        _op(_LOAD, _ARCH),
        _op(_JEQ, architecture, 1),
        _op(_RETURN, _KILL),
        _op(_LOAD, _NUMBER),
        # Covers x32 as well: its numbers begin at 2^30.
        _op(_JGT, _LAST_KNOWN, 0, 1),
        _op(_RETURN, _ENOSYS),
    ]
    return b"".join(start + _search(sorted(rules.items())))
