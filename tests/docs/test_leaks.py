"""The tool that measures what is left of much work: a little of each kind, and much in the soak."""

from typing import Any

import pytest

from docs.tools import leaks
from tests.harness.servers import PrivateRedis


@pytest.mark.in_turns("name")
@pytest.mark.parametrize("name", leaks.KINDS)
async def test_what_is_left_is_looked_at_after_each_round(
    name: str, shared_server: PrivateRedis, real_redis: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(_: Any) -> None: ...

    monkeypatch.setattr(leaks, "until_lifetimes_are_over", at_once)
    found = await leaks.rounds(name, 80, shared_server.url)
    assert len(found) == leaks.ROUNDS
    assert all(each.keys() == set(leaks.FACTS) and min(each.values()) > 0 for each in found)


def test_what_grows_is_told_from_noise() -> None:
    noise = [100.0, 104.0, 99.0, 103.0, 98.0, 101.0, 104.0, 100.0]
    assert leaks.is_flat(noise, 1000)
    assert leaks.is_flat([7.0] * 8, 1000)
    assert not leaks.is_flat([value + 5 * n for n, value in enumerate(noise)], 1000)
    assert not leaks.is_flat([7.0, 7.0, 8.0, 8.0, 9.0, 9.0, 10.0, 10.0], 1000)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", leaks.KINDS)
def test_nothing_grows_with_what_was_done(name: str) -> None:
    count = leaks.KINDS[name][0]
    found = leaks.measured(name, count)
    print(found)
    assert [fact for fact, values in found.items() if not leaks.is_flat(values, count)] == []
