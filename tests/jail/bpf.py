"""The kernel's judgement of a system call by a filter, in Python: for any architecture."""

import struct

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
DONE, EINVAL, ENOTTY, EOPNOTSUPP = 0x00050000, 0x00050016, 0x00050019, 0x0005005F
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def judge(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the filter returns for this call; follows classic BPF as seccomp allows it."""
    code = list(struct.iter_unpack("HBBI", program))
    data = struct.pack(
        "=IIQ6Q", number, _AUDIT[machine], 0, *arguments, *[0] * (6 - len(arguments))
    )
    at, value = 0, 0
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        match operation:
            case 0x20:
                (value,) = struct.unpack_from("=I", data, k)
            case 0x06:
                return int(k)
            case 0x05:
                at += k
            case 0x54:
                value &= k
            case 0x15:
                at += if_true if value == k else if_false
            case 0x25:
                at += if_true if value > k else if_false
            case 0x35:
                at += if_true if value >= k else if_false
            case 0x45:
                at += if_true if value & k else if_false
            case _:
                raise ValueError(f"instruction {operation:#x}")
