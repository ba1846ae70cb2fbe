"""The compiled filter says the same of each call on both architectures, whichever runs the test."""

import ctypes
import fcntl
import struct
import termios

import pytest

from jail.inside import syscall_filter

from .bpf import ALLOW, DONE, EINVAL, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM, KILL, judge

MACHINES = list(syscall_filter._ARCHITECTURES)
on_each = pytest.mark.parametrize("machine", MACHINES)
at_each_level = pytest.mark.parametrize("alone", [False, True])

# From the kernel's own tables: what every program needs, by architecture.
ORDINARY = {
    "x86_64": {"read": 0, "write": 1, "mmap": 9, "brk": 12, "execve": 59, "exit_group": 231,
               "openat": 257, "futex": 202, "wait4": 61, "kill": 62, "getrandom": 318,
               "dup": 32, "fork": 57, "vfork": 58, "pipe2": 293, "prctl": 157, "statx": 332},
    "aarch64": {"read": 63, "write": 64, "mmap": 222, "brk": 214, "execve": 221,
                "exit_group": 94, "openat": 56, "futex": 98, "wait4": 260, "kill": 129,
                "getrandom": 278, "dup": 23, "pipe2": 59, "prctl": 167, "statx": 291},
}  # fmt: skip


@on_each
@at_each_level
def test_ordinary_calls_are_allowed(machine: str, alone: bool) -> None:
    program = syscall_filter.program(machine, alone)
    verdicts = {name: judge(program, machine, n) for name, n in ORDINARY[machine].items()}
    assert set(verdicts.values()) == {ALLOW}, verdicts


@on_each
@at_each_level
def test_every_listed_call_is_refused(machine: str, alone: bool) -> None:
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine, alone)
    listed = {**syscall_filter._REFUSED, **(syscall_filter._REFUSED_ALONE if alone else {})}
    for name, numbers in listed.items():
        if (number := numbers[column]) is not None:
            assert judge(program, machine, number) == EPERM, name


@on_each
@at_each_level
def test_every_number_has_the_verdict_of_the_lists_and_no_other(machine: str, alone: bool) -> None:
    """All of them, so that no jump in the search leads astray."""
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine, alone)
    listed = {**syscall_filter._REFUSED, **(syscall_filter._REFUSED_ALONE if alone else {})}
    refused = {numbers[column] for numbers in listed.values()}
    judged = set(syscall_filter._judged(column)) - refused
    judged |= {numbers[column] for numbers in syscall_filter._IN_VAIN.values()}
    for number in set(range(syscall_filter._LAST_KNOWN + 1)) - judged - {435}:
        expected = EPERM if number in refused else ALLOW
        assert judge(program, machine, number) == expected, number


@on_each
def test_what_is_newer_than_the_filter_and_clone3_do_not_exist(machine: str) -> None:
    program = syscall_filter.program(machine)
    for number in (435, syscall_filter._LAST_KNOWN + 1, 1 << 30, 0xFFFFFFFF):
        assert judge(program, machine, number) == ENOSYS


@on_each
def test_another_architectures_call_kills(machine: str) -> None:
    other = next(name for name in MACHINES if name != machine)
    assert judge(syscall_filter.program(machine), other, 0) == KILL


@on_each
def test_arguments_decide(machine: str) -> None:
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine)

    def verdict(numbers: tuple[int, int], *arguments: int) -> int:
        return judge(program, machine, numbers[column], *arguments)

    assert verdict(syscall_filter._CLONE, 17) == ALLOW
    assert verdict(syscall_filter._CLONE, 0x003D0F00) == ALLOW  # as pthread_create does
    for flag in (0x80, 0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000,
                 0x40000000):  # fmt: skip
        assert verdict(syscall_filter._CLONE, flag | 17) == EPERM, hex(flag)
    absent = syscall_filter._NO_FAMILY
    for family, expected in ((1, ALLOW), (2, ALLOW), (10, ALLOW), (16, absent), (17, absent),
                             (40, absent)):  # fmt: skip
        assert verdict(syscall_filter._SOCKET, family, 1, 0) == expected, family
    assert verdict(syscall_filter._SOCKET, 2, 3, 1) == EPERM  # raw ICMP
    for kind, expected in ((1, ALLOW), (2, ALLOW), (1 | 0x80800, ALLOW), (3, EPERM),
                           (4, EPERM), (6, EPERM), (10, EPERM)):  # fmt: skip
        for family in (1, 2, 10):
            assert verdict(syscall_filter._SOCKET, family, kind, 0) == expected, (family, kind)
    assert verdict(syscall_filter._SOCKET, 1, 5, 0) == ALLOW
    for family in (2, 10):
        assert verdict(syscall_filter._SOCKET, family, 5 | 0x80000, 0) == EPERM  # SCTP
    assert verdict(syscall_filter._IOCTL, 0, 0x5412) == EPERM  # type into a terminal
    assert verdict(syscall_filter._IOCTL, 0, 0x5401) == ALLOW
    assert verdict(syscall_filter._PRLIMIT, 0, 7) == ALLOW
    assert verdict(syscall_filter._PRLIMIT, 1, 7) == EPERM
    assert verdict(syscall_filter._PERSONALITY, 0x0040000) == EPERM
    for which, expected in ((0, ALLOW), (1, EPERM), (2, EPERM)):  # of a process, a group, a user
        assert verdict((141, 140), which, 0, 5) == expected
    assert verdict((141, 140), 0, 1, 5) == EPERM
    assert verdict((251, 30), 1, 0) == ALLOW
    assert verdict((251, 30), 3, 0) == EPERM


@on_each
@at_each_level
def test_nobody_watches_leases_or_marks_a_file_that_others_read(machine: str, alone: bool) -> None:
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine, alone)

    def verdict(numbers: tuple[int, int], *arguments: int) -> int:
        return judge(program, machine, numbers[column], *arguments)

    # SETLEASE, GETLEASE, NOTIFY, hints for the disk, delegations, and what no kernel has so far.
    for command in (1024, 1025, 1026, 1035, 1036, 1037, 1038, 1039, 1040, 1 << 20):
        assert verdict(syscall_filter._FCNTL, 3, command) == EINVAL, command
    for command in {
        number
        for name, number in vars(fcntl).items()
        if name.startswith(("F_DUPFD", "F_GETF", "F_SETF", "F_OFD", "F_GETLK", "F_SETLK"))
        or name.endswith(("OWN", "SIG", "PIPE_SZ", "SEALS"))
    }:
        assert verdict(syscall_filter._FCNTL, 3, command) == ALLOW, command
    # Flags of ext4 and XFS, freeze, verity, an encryption policy, btrfs, a pidfd, a namespace.
    for request in (0x40086602, 0x401C5820, 0xC0045877, 0x40806685, 0x400C6613, 0x50009403,
                    0xC040FF0B, 0xB701):  # fmt: skip
        assert verdict(syscall_filter._IOCTL, 3, request) == ENOTTY, hex(request)
    for request in (termios.TCGETS, termios.TIOCGWINSZ, termios.FIONREAD, 0x8912):
        assert verdict(syscall_filter._IOCTL, 3, request) == ALLOW, hex(request)
    assert verdict(syscall_filter._IOCTL, 3, 0x5423) == EPERM  # another driver for a terminal


@on_each
@at_each_level
def test_nobody_learns_or_changes_what_of_a_file_is_in_memory(machine: str, alone: bool) -> None:
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine, alone)

    def verdict(numbers: tuple[int, int], *arguments: int) -> int:
        return judge(program, machine, numbers[column], *arguments)

    for name, numbers in syscall_filter._IN_VAIN.items():
        assert verdict(numbers, 3) == DONE, name
    assert verdict(syscall_filter._MSYNC, 0, 4096, 4) == DONE  # SYNC
    assert verdict(syscall_filter._MSYNC, 0, 4096, 1) == ALLOW  # ASYNC: it tells what is mapped
    for advice in (12, 20, 21, 25):
        assert verdict(syscall_filter._MADVISE, 0, 4096, advice) == EINVAL, advice
    for advice in (0, 3, 4, 8, 14, 15, 18, 23):  # what allocators give
        assert verdict(syscall_filter._MADVISE, 0, 4096, advice) == ALLOW, advice
    assert verdict(syscall_filter._PRCTL, 67, 1) == EINVAL  # memory merged with that of others
    assert verdict(syscall_filter._PRCTL, 15) == ALLOW
    for call in syscall_filter._READ_WRITE_FLAGGED:
        assert verdict(call, 3, 0, 1, 0, 0, 8) == EOPNOTSUPP  # NOWAIT: only what is in memory
        assert verdict(call, 3, 0, 1, 0, 0, 2) == ALLOW


@on_each
def test_without_namespaces_there_are_no_sockets_but_pairs(machine: str) -> None:
    column, _ = syscall_filter._ARCHITECTURES[machine]
    program = syscall_filter.program(machine, alone=True)
    for family in range(46):
        assert judge(program, machine, syscall_filter._SOCKET[column], family, 1, 0) == EPERM
    assert judge(program, machine, syscall_filter._SOCKETPAIR[column], 1, 1, 0) == ALLOW


def test_a_machine_that_was_not_judged_has_no_filter() -> None:
    with pytest.raises(OSError, match="riscv64"):
        syscall_filter.program("riscv64")


@at_each_level
def test_the_kernel_takes_a_filter_of_this_length(alone: bool) -> None:
    for machine in MACHINES:
        assert len(syscall_filter.program(machine, alone)) <= 4096 * struct.calcsize("HBBI")
    assert ctypes.sizeof(ctypes.c_char_p) == 8  # the filter is handed over by a 64-bit pointer
