"""The loop of the process, and its end."""

import pytest

from worker import process_loop


async def nothing() -> None:
    return


@pytest.mark.parametrize("fails", [False, True])
def test_a_last_work_that_asks_for_the_loop_gets_the_one_that_ends(fails: bool) -> None:
    last = process_loop.process_loop()

    async def farewell() -> None:
        await process_loop.on_process_loop(nothing())
        assert process_loop.process_loop() is last
        if fails:
            raise OSError("it does not hang up")

    if fails:
        with pytest.raises(OSError, match="hang up"):
            process_loop.stop(farewell)
    else:
        process_loop.stop(farewell)
    assert last.is_closed()
    assert process_loop._running is None
