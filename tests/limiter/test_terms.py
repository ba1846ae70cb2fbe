"""What a gate allows: refused where it cannot work, agreed on, changed while it runs."""

import asyncio
import logging
import math
from typing import Any

import pytest

from ground import SettingError
from limiter import Adaptive, LimitTimeout, StartingGate, TokenBucket

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("setting", "given", "shown"),
    [
        ("limit", {"limit": 0}, "not 0"),
        ("limit", {"limit": -3}, "not -3"),
        ("limit", {"limit": 2.5}, "not 2.5"),
        ("limit", {"limit": 3.0}, "not 3.0"),
        ("limit", {"limit": math.nan}, "not nan"),
        ("limit", {"limit": math.inf}, "not inf"),
        ("limit", {"limit": True}, "not True"),
        ("limit", {"limit": "3"}, "not '3'"),
        ("limit", {}, "needs a limit, a rate, or both"),
        ("rate", {"rate": 0}, "not 0"),
        ("rate", {"rate": -1.5}, "not -1.5"),
        ("rate", {"rate": math.nan}, "not nan"),
        ("rate", {"rate": math.inf}, "not inf"),
        ("rate", {"rate": True}, "not True"),
        ("burst", {"rate": 1, "burst": 0}, "not 0"),
        ("burst", {"rate": 1, "burst": 1.5}, "not 1.5"),
        ("burst", {"limit": 1, "burst": 7}, "a burst of 7 needs a rate"),
        ("lease", {"limit": 1, "lease": 10, "heartbeat": 6}, "two heartbeats of 6 s"),
        ("lease", {"limit": 1, "lease": 0}, "not 0"),
        ("lease", {"limit": 1, "lease": math.nan}, "not nan"),
        ("lease", {"limit": 1, "lease": "5"}, "not '5'"),
        ("lease", {"limit": 1, "lease": 1e-9}, "0.001 or more seconds"),
        ("heartbeat", {"limit": 1, "heartbeat": -1}, "not -1"),
        ("patience", {"limit": 1, "patience": 0}, "not 0"),
        ("rates", {"rates": {"tokens": None}}, "not None"),
        ("orphan_hold", {"limit": 1, "orphan_hold": -1}, "not -1"),
        ("orphan_hold", {"limit": 1, "orphan_hold": math.nan}, "not nan"),
    ],
)
def test_terms_that_cannot_work_are_refused(setting, given, shown):
    with pytest.raises(SettingError, match=setting) as refusal:
        TokenBucket(NOWHERE, "g", **given)
    assert refusal.value.setting == setting
    assert shown in str(refusal.value)


@pytest.mark.parametrize("count", [10**10, 10**400, 1e300])
@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("limit", lambda count: {"limit": count}),
        ("limit", lambda count: {"limit": Adaptive(max=count)}),
        ("rate", lambda count: {"rate": count}),
        ("rate", lambda count: {"rate": Adaptive(max=count)}),
        ("burst", lambda count: {"rate": 1, "burst": count}),
        ("rates", lambda count: {"rates": {"tokens": count}}),
        ("lease", lambda count: {"limit": 1, "lease": count}),
        ("patience", lambda count: {"limit": 1, "patience": count}),
        ("orphan_hold", lambda count: {"limit": 1, "orphan_hold": count}),
    ],
)
def test_terms_beyond_all_measure_are_refused(setting, given, count):
    with pytest.raises(SettingError, match=f"^{setting}: .*1000000000, not"):
        TokenBucket(NOWHERE, "g", **given(count))


@pytest.mark.parametrize("name", ["", "with space", "{braced}", "x" * 129, "-dash", "new\nline"])
def test_names_that_no_key_could_hold_are_refused(name):
    with pytest.raises(SettingError, match="name") as refusal:
        TokenBucket(NOWHERE, name, limit=1)
    assert repr(name) in str(refusal.value)


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_a_starting_gate_is_refused_the_same_way(limit):
    with pytest.raises(SettingError, match=f"limit.*not {limit}"):
        StartingGate(NOWHERE, limit=limit)


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("timeout", {"timeout": -0.1}),
        ("timeout", {"timeout": math.nan}),
        ("timeout", {"timeout": True}),
        ("timeout", {"timeout": math.inf}),
        ("timeout", {"timeout": 10**400}),
        ("orphan_hold", {"orphan_hold": 10**400}),
        ("cost", {"cost": 10**5000}),
        ("lane", {"lane": 10**5000}),
        ("ticket", {"ticket": 10**5000}),
        ("lane", {"lane": 512}),
        ("lane", {"lane": -513}),
        ("lane", {"lane": 0.5}),
        ("lane", {"lane": math.nan}),
    ],
)
async def test_wishes_that_make_no_sense_are_refused_and_make_no_gate(real_redis, setting, given):
    gate = TokenBucket(real_redis, "g", limit=1)
    with pytest.raises(SettingError, match=setting):
        await gate.acquire(**given)
    with pytest.raises(SettingError, match=setting):
        gate.sync.acquire(**given)
    assert gate._client._unit is None
    assert real_redis.keys() == []


async def test_a_change_that_cannot_work_is_refused(redis):
    gate = TokenBucket(redis, "g", limit=1)
    with pytest.raises(SettingError, match=r"limit.*not 0"):
        await gate.configure(limit=0)
    assert (await gate.status()).limit == 1


async def test_a_burst_without_a_rate_is_refused_to_a_gate_that_stands(redis):
    gate = TokenBucket(redis, "g", limit=1)
    with pytest.raises(SettingError, match=r"burst.*no rate.*give a rate"):
        await gate.configure(burst=5)
    with pytest.raises(SettingError, match=r"burst.*no rate"):
        gate.sync.configure(limit=2, burst=5)
    assert ((await gate.status()).limit, (await gate.status()).burst) == (1, None)


@pytest.mark.parametrize(
    "bounds", [{"max": math.inf}, {"max": 10**5000}, {"min": math.nan, "max": 9}, {"max": "9"}]
)
async def test_bounds_that_no_limit_could_keep_are_refused(redis, bounds):
    gate = TokenBucket(redis, "g", limit=1)
    with pytest.raises(SettingError, match=r"(min|max): must be above 0 permits"):
        await gate.configure(adapt=True, **bounds)


async def test_a_burst_that_could_not_reach_the_rate_is_refused_with_one_that_can(redis):
    with pytest.raises(SettingError, match=r"burst: 1 cannot reach 500 grants .* Give 10 or more"):
        TokenBucket(redis, "g", rate=500, burst=1)
    assert (await TokenBucket(redis, "g", rate=500, burst=10).status()).burst == 10
    assert (await TokenBucket(redis, "slow", rate=50, burst=1).status()).burst == 1


async def test_a_change_of_rate_or_burst_is_checked_with_the_other_as_it_stands(redis):
    gate = TokenBucket(redis, "g", rate=50, burst=1)
    with pytest.raises(SettingError, match="Give 10 or more"):
        await gate.configure(rate=500)
    await gate.configure(rate=500, burst=10)
    with pytest.raises(SettingError, match="Give 10 or more"):
        await gate.configure(burst=1)
    with pytest.raises(SettingError, match="Give 10 or more"):
        gate.sync.configure(burst=1)
    status = await gate.status()
    assert (status.rate, status.burst) == (500, 10)


async def test_a_gate_is_made_with_its_first_constructors_terms(redis):
    status = await TokenBucket(redis, "g", limit=7, rate=2.5, burst=4).status()
    assert (status.limit, status.rate, status.burst) == (7, 2.5, 4)


async def test_a_burst_is_a_tenth_of_a_seconds_worth_unless_told(redis):
    assert (await TokenBucket(redis, "fast", rate=45).status()).burst == 5
    assert (await TokenBucket(redis, "slow", rate=0.5).status()).burst == 1


async def test_numbers_of_other_libraries_are_numbers(redis):
    from fractions import Fraction

    status = await TokenBucket(redis, "g", rate=Fraction(5, 2), burst=1).status()
    assert status.rate == 2.5


async def test_terms_that_differ_are_logged_once_with_both_and_the_gates_stay(redis, caplog):
    redis.hset("penstock:gate:{g}", mapping={"limit": "3", "rate": "", "burst": ""})
    gate = TokenBucket(redis, "g", limit=8)
    with caplog.at_level(logging.WARNING, "penstock.limiter"):
        assert (await gate.status()).limit == 3
        for _ in range(2):
            (await gate.acquire()).release()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "'g'" in warning
    assert "8" in warning
    assert "3" in warning


async def test_a_second_gate_object_with_other_terms_is_told_too(redis, caplog):
    first, second = TokenBucket(redis, "g", limit=3), TokenBucket(redis, "g", limit=5)
    with caplog.at_level(logging.WARNING, "penstock.limiter"):
        for gate in (first, second, first, second):
            (await gate.acquire()).release()
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "5" in warning
    assert "3" in warning


async def test_enforced_terms_are_written_whole(redis):
    await TokenBucket(redis, "g", limit=3, rate=1.0).status()
    gate = TokenBucket(redis, "g", limit=5, enforce=True)
    (await gate.acquire(timeout=100)).release()
    status = await gate.status()
    assert (status.limit, status.rate, status.burst) == (5, None, None)


async def test_the_agreeing_say_nothing(redis, caplog):
    with caplog.at_level(logging.WARNING, "penstock.limiter"):
        for gate in (TokenBucket(redis, "g", limit=3), TokenBucket(redis, "g", limit=3)):
            (await gate.acquire()).release()
    assert caplog.records == []


async def test_a_raised_limit_lets_waiters_in_and_a_lowered_one_revokes_nothing(redis):
    gate = TokenBucket(redis, "g", limit=1)
    first = await gate.acquire()
    waiting = asyncio.create_task(gate.acquire())
    await in_line(gate, 1)
    await gate.configure(limit=2)
    second = await waiting
    await gate.configure(limit=1)
    assert not first.lost
    assert not second.lost
    assert (await gate.status()).in_flight == 2
    second.release()
    assert not await gate.try_acquire()
    first.release()
    assert await gate.try_acquire()


async def test_a_paused_gate_lets_nobody_in_until_it_is_resumed(redis):
    gate = TokenBucket(redis, "g", limit=1)
    await gate.pause()
    assert await gate.try_acquire() == math.inf
    waiting = asyncio.create_task(gate.acquire())
    await in_line(gate, 1)
    with pytest.raises(LimitTimeout):
        await gate.acquire(timeout=0.05)
    status = await gate.status()
    assert (status.paused, status.waiting) == (True, 1)
    await gate.resume()
    assert await waiting


def test_threads_change_a_gate_with_the_same_words(redis):
    gate = TokenBucket(redis, "g", limit=1).sync
    gate.configure(limit=2, rate=50, burst=2)
    gate.pause()
    status = gate.status()
    assert (status.limit, status.rate, status.burst, status.paused) == (2, 50.0, 2, True)
    gate.resume()
    assert gate.acquire(timeout=100)


async def in_line(gate: Any, number: int) -> None:
    while (await gate.status()).waiting != number:  # noqa: ASYNC110 - the line is in Redis
        await asyncio.sleep(0.005)


async def test_a_gate_object_that_is_kept_another_way_is_told(redis, caplog):
    first, second = (TokenBucket(redis, "g", limit=1, lease=lease) for lease in (30, 60))
    for gate in (first, second, first, second):
        async with gate:
            pass
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "(30.0, 10.0, 30.0)" in told[0].replace("30,", "30.0,")
    assert "60" in told[0]


async def test_after_a_loss_of_data_a_gate_has_its_constructors_terms_again(redis):
    gate = TokenBucket(redis, "g", limit=1)
    await gate.configure(limit=5)
    redis.flushall()
    assert (await gate.status()).limit == 1


@pytest.mark.parametrize("asks", [True, False], ids=["who asks", "who holds"])
async def test_enforced_terms_are_enforced_again_after_a_loss_of_data(redis, asks):
    enforced = TokenBucket(redis, "g", limit=5, lease=3, enforce=True)
    permit = await enforced.acquire()
    redis.flushall()
    redis.hset("penstock:gate:{g}", mapping={"limit": 9, "rate": "", "burst": "", "made": 1})
    if asks:
        (await enforced.acquire()).release()
    while (await enforced.status()).limit != 5:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await enforced.configure(limit=7)
    await permit.renew()
    (await enforced.acquire()).release()
    assert (await enforced.status()).limit == 7
