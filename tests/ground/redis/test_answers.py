"""What a caller hears of its answer."""

from ground import RedisUnavailable
from ground.redis.answers import own


def test_each_callers_error_still_says_what_caused_it() -> None:
    shared = RedisUnavailable("redis://nowhere does not answer")
    shared.__cause__ = OSError("refused")
    shared.add_note("after 15 s")
    for _ in range(2):
        mine = own(shared)
        assert mine is not shared
        assert mine.__cause__ is shared.__cause__
        assert mine.__suppress_context__
        assert mine.__notes__ == shared.__notes__
