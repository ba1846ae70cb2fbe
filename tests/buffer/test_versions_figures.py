"""What a policy drops is counted: by what it makes of old groups, and by problem."""

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from buffer import Policy
from buffer.link import Link
from buffer.metrics import families
from tests.buffer.conftest import Bench


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    """Two groups of a slow problem were dropped and one of a quick one was made again; one was
    delivered."""
    bench = make(group_size=2)
    settings: dict[str, Any] = {"groups_per_version": 4, "max_age": 1}
    await bench.buffer.set_policy(Policy(**settings, when_old="drop"))
    await bench.buffer.publish(1)
    await bench.buffer.admit(2, instances=[("slow", 0), ("slow", 1)])
    await bench.buffer.publish(3)
    await bench.buffer.set_policy(Policy(**settings, when_old="again"))
    await bench.buffer.admit(1, instances=["quick"])
    await bench.buffer.publish(5)
    await bench.fill("good", [1, 0])
    assert (await bench.buffer.take(1)) is not None
    return bench


async def test_the_library_tells_the_share_that_was_dropped(bench: Bench) -> None:
    now = await bench.buffer.versions()
    assert now.dropped == {"slow": 2, "quick": 1}
    assert now.dropped_by == {"again": 1, "drop": 2}
    assert now.dropped_share == 3 / 4


class _Found:
    def __init__(self, found: Any) -> None:
        self._found = found

    def collect(self) -> Any:
        return self._found


async def test_metrics_tell_it_without_a_label_for_each_problem(bench: Bench) -> None:
    registry = CollectorRegistry()
    registry.register(_Found(await families([bench.buffer])))
    text = generate_latest(registry).decode()
    where = 'run="default",task="math"'
    assert f'penstock_buffer_dropped_groups_total{{{where},when_old="drop"}} 2.0' in text
    assert f"penstock_buffer_dropped_share{{{where}}} 0.75" in text
    assert f"penstock_buffer_dropped_share_of_ten{{{where}}} 1.0" in text
    assert "slow" not in text


async def test_a_groups_age_is_by_the_clock_of_redis(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = Link.now

    async def an_hour_later(link: Link) -> float:
        return await now(link) + 3600

    await bench.fill("ready", [1, 0])
    monkeypatch.setattr(Link, "now", an_hour_later)
    ages = next(
        one for one in await families([bench.buffer]) if one.name.endswith("oldest_seconds")
    )
    assert max(sample.value for sample in ages.samples) >= 3600
