"""Generators of the buffer at a gateway: their items have the exact tokens that were sampled."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.adapters.samples import samples_of
from gateway.items import rows_in
from gateway.packing import spread
from tests.buffer.serving import ServerProcess
from tests.gateway.scripted.model import misproved
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import World, world
from tests.gateway.trainers import Sample
from tests.harness.servers import PrivateRedis

pytestmark = pytest.mark.timeout(400)  # it starts a server, and a crew of processes

GENERATOR = """
import os, sys
from pathlib import Path
from buffer.generator import SAMPLING_PARAMS, BaseGenerator, query_single_turn

URL, DATA, MARK = sys.argv[1:4]
SAMPLING_PARAMS.update({"temperature": 0.7, "logprobs": True})

def dies_once(client, messages, sampling):
    said = query_single_turn(client, messages, sampling)
    if not Path(MARK).exists():
        Path(MARK).touch()
        os._exit(9)
    return said

def asks_twice(client, messages, sampling):
    query_single_turn(client, messages, {**sampling, "seed": 1})
    return query_single_turn(client, messages, {**sampling, "seed": 1})

def fails(client, messages, sampling):
    query_single_turn(client, messages, sampling)
    raise RuntimeError("no")

name = sys.argv[4]
if name == "refused":
    SAMPLING_PARAMS["beam_width"] = 3
rollout = globals().get(name, query_single_turn)
BaseGenerator(
    "http://engine", URL, int(sys.argv[5]), num_process=2, interrupt_on_publish=name == "interrupts"
).run(DATA, rollout, lambda row: len(row["label"]))
"""


@pytest.fixture
async def here(real_redis: ground.Client) -> AsyncIterator[World]:
    """An engine behind a gateway with a token."""
    async with world(real_redis, ScriptedVllm(version=4), port=True, gateway_token="to ken") as one:
        yield one


@pytest.fixture
def bench(shared_server: PrivateRedis, tmp_path: Path, here: World) -> Iterator["Bench"]:
    with ServerProcess(shared_server.url, tmp_path) as server:
        yield Bench(here, server.url, tmp_path)


class Bench:
    """A buffer's server, and a data set of two questions."""

    def __init__(self, here: World, url: str, folder: Path) -> None:
        self.here, self.url, self.folder = here, url, folder
        lines = [
            {"instance_id": name, "prompt": [{"role": "user", "content": name}], "label": "four"}
            for name in ("a", "b")
        ]
        (folder / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
        host = str(here.http.base_url).removeprefix("http://").rstrip("/")
        self.environment = {"PENSTOCK_GATEWAY_URL": f"http://any:to%20ken@{host}"}

    async def generates(self, rollout: str = "", repeat: int = 1) -> str:
        """Runs a generator to its end; what it said if it failed."""
        words = [self.url, str(self.folder / "data.jsonl"), str(self.folder / "mark"), rollout]
        process = await asyncio.create_subprocess_exec(
            "env", *(f"{name}={value}" for name, value in self.environment.items()),
            sys.executable, "-c", GENERATOR, *words, str(repeat), stderr=subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        return said.decode() if process.returncode else ""

    async def call(self, method: str, path: str, **body: Any) -> None:
        """Asks the buffer's server about the task."""
        url = f"{self.url}/v1/tasks/math{path}"
        (await self.here.http.request(method, url, json=body)).raise_for_status()

    async def items(self, redis: ground.Client, most: int) -> list[dict[str, Any]]:
        buffer, found = RolloutBuffer(redis, "math"), []
        while len(found) < most:
            batch = await buffer.take(wait=100)
            assert batch is not None
            found += batch.items
        await buffer.aclose()
        return sorted(found, key=lambda item: str(item["instance_id"]))

    @property
    def sampled(self) -> int:
        return sum(len(each.sampled) for each in self.here.engine.log)


def proves_itself(item: dict[str, Any]) -> int:
    """How many of its tokens are trained on; each was sampled in the context that its row has."""
    trained = 0
    for row, _ in rows_in(item):
        zeros = [0] * (len(row.tokens) - row.response_length)
        mask, versions = zeros + spread(row.mask), zeros + spread(row.versions)
        logprobs = [0.0] * len(zeros) + list(row.logprobs)
        versions = [max(each, 0) for each in versions]
        assert misproved(row.tokens.tolist(), mask, logprobs, versions) == []
        trained += sum(mask)
    return trained


async def test_the_items_of_a_generator_have_exact_tokens(
    bench: Bench, real_redis: ground.Client
) -> None:
    buffer = RolloutBuffer(real_redis, "math")
    await buffer.configure(TaskConfig(group_size=2, dialect="v1"))
    await buffer.aclose()
    assert await bench.generates(repeat=2) == ""
    items = await bench.items(real_redis, 4)
    assert [item["instance_id"] for item in items] == ["a", "a", "b", "b"]
    assert len({item["uid"] for item in items}) == 4
    assert sum(map(proves_itself, items)) == bench.sampled > 0
    for item in items:
        assert (item["exact"], item["reward"], item["sampling"]["temperature"]) == (True, 4, 0.7)
        assert item["messages"][0]["content"] == item["instance_id"]
        assert item["messages"][1]["content"]
        assert item["extra_info"]["label"] == "four"
        (row,) = rows_in(item)
        assert {version for _, version in row[0].versions} == {4}


async def test_no_proxy_is_asked_for_a_gateway_on_this_machine(
    bench: Bench, real_redis: ground.Client
) -> None:
    bench.environment["HTTP_PROXY"] = "http://127.0.0.1:9"  # nobody listens there
    buffer = RolloutBuffer(real_redis, "math")
    await buffer.configure(TaskConfig(group_size=1, dialect="v1"))
    await buffer.aclose()
    assert await bench.generates() == ""
    assert [item["exact"] for item in await bench.items(real_redis, 2)] == [True, True]


async def test_a_question_that_is_dealt_once_more_is_not_sampled_again(
    bench: Bench, real_redis: ground.Client
) -> None:
    assert await bench.generates("dies_once") == ""
    assert (bench.folder / "mark").exists()
    items = await bench.items(real_redis, 2)
    assert len(bench.here.engine.log) == 2
    assert sum(map(proves_itself, items)) == bench.sampled


async def test_equal_requests_of_one_rollout_are_two_samples(
    bench: Bench, real_redis: ground.Client
) -> None:
    assert await bench.generates("asks_twice") == ""
    items = await bench.items(real_redis, 2)
    assert len(bench.here.engine.log) == 4
    assert [len(rows_in(item)) for item in items] == [2, 2]
    assert sum(map(proves_itself, items)) == bench.sampled


async def test_a_question_that_always_fails_is_text_without_rows(
    bench: Bench, real_redis: ground.Client
) -> None:
    assert await bench.generates("fails") == ""
    for item in await bench.items(real_redis, 2):
        assert (item["exact"], item["reward"], rows_in(item)) == (False, -1, [])
        assert samples_of(Sample, item, group=0, rollout=0) == []
    assert len(bench.here.engine.log) == 2


async def test_a_generator_under_a_policy_fills_its_slots_with_exact_items(
    bench: Bench, real_redis: ground.Client
) -> None:
    await bench.call("PUT", "/policy", groups_per_version=2, max_age=1, depth=0)
    await bench.call("POST", "/versions", version=4, owner="trainer")
    assert await bench.generates() == ""
    items = await bench.items(real_redis, 2)
    assert sum(map(proves_itself, items)) == bench.sampled
    assert [(item["instance_id"], item["exact"]) for item in items] == [("a", True), ("b", True)]


async def test_a_gateway_that_refuses_sessions_ends_the_generator(bench: Bench) -> None:
    said = await bench.generates("refused")
    assert "GeneratorError: the gateway refused POST" in said
    assert "beam_width" in said
    assert "to ken" not in said


async def test_an_interrupt_at_each_version_is_refused_at_a_gateway(bench: Bench) -> None:
    assert "unset PENSTOCK_GATEWAY_URL" in await bench.generates("interrupts")
