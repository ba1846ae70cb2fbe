"""Generators that are interrupted: they park what they have, and the next one goes on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

import ground
from buffer.generator import query_single_turn
from buffer.generator.partial import Interrupted, Partial, Signals
from tests.buffer.serving import ServerProcess
from tests.harness.servers import PrivateRedis, until
from tests.harness.streaming_model import StreamingModel, streaming_model

GENERATOR = """
import signal, sys
from buffer.generator import BaseGenerator, query_single_turn

url, engine, data, on_publish = sys.argv[1:]
generator = BaseGenerator(engine, url + "/tasks/math", 1, num_process=2, max_tokens=100_000,
                          interrupt_on_publish=on_publish == "on publish")
signal.signal(signal.SIGUSR1, lambda *_: generator.interrupt())
generator.entry(data, query_single_turn, lambda row: 1)
"""


class Bench:
    """A server, an engine, a task of one problem, and generators for it."""

    def __init__(self, url: str, model: StreamingModel, folder: Path) -> None:
        self.url, self.model = url, model
        self.started: list[subprocess.Popen[bytes]] = []
        self._data = folder / "data.jsonl"
        prompt = [{"role": "user", "content": "?"}]
        self._data.write_text(json.dumps({"instance_id": "a", "prompt": prompt, "label": "2"}))

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = httpx.request(
            method, f"{self.url}/v1/tasks/math{path}", json=body or None, timeout=200
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def publish(self, version: int) -> None:
        self.call("POST", "/versions", version=version, owner="trainer")

    def generator(self, interrupted: str) -> "subprocess.Popen[bytes]":
        words = [self.url, self.model.url, str(self._data), interrupted]
        process = subprocess.Popen(
            [sys.executable, "-c", GENERATOR, *words], start_new_session=True
        )
        self.started.append(process)
        return process

    def hears_tokens_of(self, request: int) -> None:
        """Until the engine has sent some tokens more for that request."""
        until(lambda: len(self.model.begun) == request, f"request {request}", 300)
        seen = max(self.model.sent, self.model.begun[-1])
        until(lambda: self.model.sent > seen + 3, "tokens", 300)

    def finished_item(self) -> dict[str, Any]:
        batch = self.call("POST", "/take", groups=1, wait=60)
        ((item,),) = [group["items"] for group in batch["groups"]]
        return dict(item)


@pytest.fixture
def bench(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> Iterator[Bench]:
    with ServerProcess(shared_server.url, tmp_path) as server, streaming_model() as model:
        found = Bench(server.url, model, tmp_path)
        found.call("PUT", "", group_size=1, dialect="v1")
        found.call("PUT", "/policy", groups_per_version=1, max_age=9, slot_lease=2.0)
        found.publish(5)
        yield found
        for process in found.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


@pytest.mark.timeout(1800)
def test_an_item_interrupted_thrice_by_versions_and_a_kill_is_one_whose_spans_add_up(
    bench: Bench,
) -> None:
    first = bench.generator("on publish")
    bench.hears_tokens_of(1)
    bench.publish(6)  # the first goes on with what it parked
    bench.hears_tokens_of(2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    until(lambda: bench.call("GET", "/versions")["parked"] == 1, "the slot's end", 300)
    second = bench.generator("on publish")
    bench.hears_tokens_of(3)
    bench.publish(7)
    bench.hears_tokens_of(4)
    bench.model.finish = 2 * bench.model.sent
    assert second.wait(300) == 0
    item = bench.finished_item()
    begun, tokens = bench.model.begun, bench.model.finish
    assert item["messages"][-1]["content"].split() == [str(n) for n in range(tokens)]
    assert begun[0] == 0 < begun[1] == begun[2] < begun[3] < tokens, "the kill cost one segment"
    spans = [[begun[1], 5], [begun[3] - begun[2], 6], [tokens - begun[3], 7]]
    assert item["versions"] == spans
    assert (item["version_start"], item["version_end"]) == (5, 7)
    assert item["rollout_log_probs"] == [-0.5] * tokens


@pytest.mark.timeout(1800)
def test_interrupt_parks_what_is_under_way_and_the_generator_goes_on_with_it(bench: Bench) -> None:
    process = bench.generator("by hand")
    bench.hears_tokens_of(1)
    bench.publish(6)  # asked for nothing: the answer goes on
    bench.hears_tokens_of(1)
    process.send_signal(signal.SIGUSR1)
    bench.hears_tokens_of(2)
    bench.model.finish = 2 * bench.model.sent
    assert process.wait(300) == 0
    item = bench.finished_item()
    begun, tokens = bench.model.begun, bench.model.finish
    assert item["messages"][-1]["content"].split() == [str(n) for n in range(tokens)]
    assert item["versions"] == [[begun[1], 5], [tokens - begun[1], 6]]


def asked(model: StreamingModel, partial: Partial) -> Any:
    with OpenAI(api_key="test", base_url=f"{model.url}/v1", max_retries=0) as client:
        return query_single_turn(client, [{"role": "user", "content": "?"}], {}, partial=partial)


def test_an_answer_stops_between_two_pieces_once_it_is_interrupted() -> None:
    signals = Signals()
    signals.published(3)
    with streaming_model() as model:
        partial = Partial({}, signals)
        signals.interrupt()
        with pytest.raises(Interrupted):
            asked(model, partial)
        assert model.begun == [], "it was interrupted before it began"
        partial = Partial({}, signals)
        model.finish = 7
        messages, reason = asked(model, partial)
    assert (messages[-1]["content"], reason) == ("0 1 2 3 4 5 6 ", "stop")
    assert partial.fields() == {"versions": [[7, 3]], "rollout_log_probs": [-0.5] * 7}


def test_what_was_parked_is_gone_on_with_and_keeps_its_versions() -> None:
    parked = {
        "uid": "u", "segment": 1, "versions": [[2, 3]], "rollout_log_probs": [-0.1, -0.2],
        "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "0 1 "}],
    }  # fmt: skip
    signals = Signals()
    signals.published(4)
    partial = Partial(parked, signals)
    with streaming_model() as model:
        model.finish = 4
        messages, _ = asked(model, partial)
    assert model.begun == [2]
    assert messages[-1]["content"] == "0 1 2 3 "
    assert partial.fields() == {
        "versions": [[2, 3], [2, 4]], "rollout_log_probs": [-0.1, -0.2, -0.5, -0.5]
    }  # fmt: skip
