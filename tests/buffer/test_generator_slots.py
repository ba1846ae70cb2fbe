"""A generator whose task has a policy on versions: it takes slots, and its items carry versions."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ground
from tests.buffer.serving import ServerProcess
from tests.harness.servers import PrivateRedis, until

pytestmark = pytest.mark.timeout(400)  # it starts a server and two crews of processes

GENERATOR = """
import os, sys
from pathlib import Path
from buffer.generator import BaseGenerator

def answered(client, messages, sampling):
    begun = Path(sys.argv[3])
    with begun.open("a") as file:
        file.write("begun\\n")
    while len(sys.argv) > 4 and not Path(sys.argv[4]).exists():
        import time; time.sleep(0.01)
    return [*messages, {"role": "assistant", "content": "2"}]

generator = BaseGenerator("http://engine", sys.argv[1] + "/tasks/math", 2, num_process=4)
generator.entry(sys.argv[2], answered, lambda row: 1, num_epoch=2)
"""


class Bench:
    """A server, a task of groups of two, and a data set of three problems in two epochs."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.started: list[subprocess.Popen[bytes]] = []
        self._folder = folder
        self.begun = folder / "begun"
        self.release = folder / "release"
        self._data = folder / "data.jsonl"
        lines = [{"instance_id": name, "prompt": [], "label": "2"} for name in "abc"]
        self._data.write_text("\n".join(map(json.dumps, lines)))

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = httpx.request(
            method, f"{self.url}/v1/tasks/math{path}", json=body or None, timeout=120
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    def generator(self, *, held_back: bool = False) -> "subprocess.Popen[bytes]":
        words = [self.url, str(self._data), str(self.begun)]
        words += [str(self.release)] if held_back else []
        process = subprocess.Popen(
            [sys.executable, "-c", GENERATOR, *words], start_new_session=True
        )
        self.started.append(process)
        return process

    def taken(self, groups: int, version: int) -> list[dict[str, Any]]:
        """The items of so many groups, all of this version."""
        items: list[dict[str, Any]] = []
        while len(items) < 2 * groups:
            batch = self.call("POST", "/take", groups=groups - len(items) // 2, wait=80)
            assert batch["meta_info"]["version"] == version
            assert set(batch["meta_info"]["ages"]) == {0}
            self.call("POST", f"/batches/{batch['receipt']}/ack")
            items += [item for group in batch["groups"] for item in group["items"]]
        return items

    def begun_questions(self) -> int:
        return len(self.begun.read_text().split()) if self.begun.exists() else 0


@pytest.fixture
def bench(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> Iterator[Bench]:
    with ServerProcess(shared_server.url, tmp_path) as server:
        found = Bench(server.url, tmp_path)
        found.call("PUT", "", group_size=2)
        yield found
        for process in found.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def test_a_generator_makes_what_the_policy_has_room_for_and_no_more(bench: Bench) -> None:
    bench.call("PUT", "/policy", groups_per_version=2, max_age=1, depth=0)
    bench.call("POST", "/versions", version=5, owner="trainer")
    process = bench.generator()
    seen: Counter[tuple[str, int]] = Counter()
    for version in (5, 6, 7):
        for made in bench.taken(2, version):
            assert (made["version_start"], made["version_end"]) == (version, version)
            seen[made["instance_id"], made["round_number"]] += 1
        if version < 7:
            until(lambda: bench.call("GET", "/versions")["waiting"] == 1, "the next ask")
            assert bench.call("GET", "/versions")["outstanding"] == {}
            assert bench.begun_questions() == 4 * (version - 4)
            bench.call("POST", "/versions", version=version + 1, owner="trainer")
    assert process.wait(100) == 0
    assert seen == {(name, number): 2 for name in "abc" for number in (0, 1)}


def test_the_groups_of_a_killed_generator_are_made_by_another(bench: Bench) -> None:
    bench.call("PUT", "/policy", groups_per_version=6, max_age=1, slot_lease=1.0)
    bench.call("POST", "/versions", version=5, owner="trainer")
    process = bench.generator(held_back=True)
    until(lambda: bench.begun_questions() == 4, "four questions under way")
    os.killpg(process.pid, 9)
    process.wait()
    until(lambda: bench.call("GET", "/versions")["slots"] == 0, "the slots' end", 100)
    other = bench.generator()
    items = bench.taken(6, 5)
    assert other.wait(100) == 0
    made = Counter((item["instance_id"], item["round_number"]) for item in items)
    assert made == {(name, number): 2 for name in "abc" for number in (0, 1)}
    assert bench.call("GET", "/versions")["slots"] == 0


def test_a_generator_renews_at_the_pace_of_a_lease_that_became_shorter(bench: Bench) -> None:
    bench.call("PUT", "/policy", groups_per_version=6, max_age=1, slot_lease=6.0)
    bench.call("POST", "/versions", version=5, owner="trainer")
    bench.generator(held_back=True)
    until(lambda: bench.begun_questions() == 4, "four questions under way")
    bench.call("PUT", "/policy", groups_per_version=6, max_age=1, slot_lease=1.0)
    time.sleep(7)  # in two renewals: the first says what the lease is now, the second is in time
    assert bench.call("GET", "/stats").get("slots_lapsed", 0) == 0
