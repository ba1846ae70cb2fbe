"""A mapping of limited size: what was not used for longest goes first."""

from ground.recent import Recent


def test_what_was_not_used_for_longest_goes_first() -> None:
    recent: Recent[int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.use("a") == 1
    recent.put("c", 3)
    assert list(recent.items()) == [("a", 1), ("c", 3)]
    assert recent.use("b") is None


def test_sizes_are_bounded_together() -> None:
    recent: Recent[bytes] = Recent(10, len)
    recent.put(1, b"12345")
    recent.put(2, b"12345")
    recent.put(2, b"1")  # smaller than before
    recent.put(3, b"1234")
    assert list(recent) == [1, 2, 3]
    recent.put(4, b"1")
    assert list(recent) == [2, 3, 4]


def test_what_is_larger_than_all_room_is_not_kept() -> None:
    recent: Recent[bytes] = Recent(3, len)
    recent.put(1, b"1234")
    assert list(recent) == []
    recent.put(2, b"123")
    recent.most = 1
    recent.put(3, b"1")
    assert list(recent) == [3]
