"""What several rooms need stands in one place."""

import re

from tests.architecture.source import modules, name_of, scripts

CORE = ("ground", "limiter", "worker/queue", "worker/concurrent")


def holding(pattern: str, files) -> list[str]:
    """Those of the files in which some line has the pattern."""
    return [name_of(file) for file in files if re.search(pattern, file.read_text())]


def test_the_arithmetic_of_turns_is_in_one_script() -> None:
    """Gates and queues include it. What marks it is how it forgets the shares that rest."""
    shares = [file for file in scripts() if file.parent.parent.name in ("limiter", "queue")]
    assert holding("ZREMRANGEBYRANK", shares) == ["limiter/lua/turns.lua"]
    assert set(holding(r"include: (limiter:)?turns\.lua", shares)) == {
        "limiter/lua/next_share.lua",
        "worker/queue/lua/next_share.lua",
    }


def test_what_was_used_of_late_is_kept_by_one_class() -> None:
    bounded = r"OrderedDict|popitem\(last=False\)|next\(iter\(self\._\w+\)\)"
    assert holding(bounded, modules(*CORE)) == ["ground/recent.py"]


def test_a_room_of_the_core_has_one_file_of_settings_or_its_packages() -> None:
    found = [name_of(file) for file in modules(*CORE) if file.name == "settings.py"]
    assert found == ["ground/settings.py", "limiter/settings.py"]


def test_who_carries_a_unit_is_said_by_its_batch_alone() -> None:
    assert holding(r"\.carrier = ", modules(*CORE)) == [
        "ground/redis/unit.py",
        "limiter/ledger.py",  # a new unit's
        "worker/queue/client_orders.py",
    ]


def test_one_wire_speaks_to_redis_and_no_private_part_of_redis_py_is_touched() -> None:
    dials = holding(r"socket\.create_connection|AF_UNIX", modules("ground/redis", *CORE[1:]))
    assert dials == ["ground/redis/dial.py"]
    assert holding("hiredis", modules(*CORE)) == ["ground/redis/wire.py"]
    privates = r"onnection\w*\._(sock|parser|reader|writer)\b"
    found = holding(privates, modules("ground/redis", "limiter", "worker/concurrent"))
    assert found == []
