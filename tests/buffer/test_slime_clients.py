"""slime's clients drive our server: start, generate, poll, restart, resume, epochs."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.buffer.serving import ServerProcess
from tests.buffer.slime_clients import SlimeClient, questions, sums
from tests.harness import patient
from tests.harness.scripted_model import Answer, ScriptedModel, scripted_model
from tests.harness.servers import PrivateRedis, until


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with scripted_model(sums) as running:
        yield running


@pytest.fixture
def data_set(tmp_path: Path) -> str:
    return questions(tmp_path, 6)


@pytest.fixture
def server(real_redis: object, running: ServerProcess) -> ServerProcess:
    return running


@pytest.fixture
def own_server(
    real_redis: object, shared_server: PrivateRedis, tmp_path: Path
) -> Iterator[ServerProcess]:
    with ServerProcess(shared_server.url, tmp_path) as running:
        yield running


# What slime's clients send knows no dialect: today's gets v0's steps unless it asks for its own.
@pytest.mark.parametrize(("version", "dialect"), [("v0", ""), ("v1", ""), ("v1", "v1")])
def test_a_trainer_gets_every_instance_once_in_whole_groups(
    version: str, dialect: str, server: ServerProcess, model: ScriptedModel, data_set: str
) -> None:
    client = SlimeClient(server.url, model.url, data_set, version, dialect)
    client.start()
    assert len(client.rollout(0)) == 2
    done = drained(client, 6)
    assert done == {f"math_{n}": 1 for n in range(6)}
    sent = model.requests[0]
    assert (sent["model"], sent["max_tokens"], sent["temperature"]) == ("custom", 64, 0.8)
    rewards = {item["reward"] for item in client.fetched}
    assert rewards <= {0, 1} if dialect == "v1" else rewards - {0, 1}


def test_a_trainer_that_restarts_resumes_where_it_was(
    server: ServerProcess, model: ScriptedModel, data_set: str
) -> None:
    first = SlimeClient(server.url, model.url, data_set)
    first.start()
    first.rollout(0)
    checkpoint = json.loads(json.dumps(first.metadata))
    second = SlimeClient(server.url, model.url, data_set, metadata=checkpoint)
    second.start()
    finished = {name for ids in checkpoint.values() for name in ids}
    rest = {f"math_{n}" for n in range(6)} - finished
    until(lambda: second._fetch(second.fetched, []) or seen(second) == rest, "the rest")
    assert seen(second).isdisjoint(finished)


def test_the_same_start_twice_is_one_rollout(
    server: ServerProcess, model: ScriptedModel, data_set: str
) -> None:
    client = SlimeClient(server.url, model.url, data_set)
    client.start()
    client.start()
    assert drained(client, 6) == {f"math_{n}": 1 for n in range(6)}
    assert len(model.requests) == 24


def test_ten_epochs_deliver_each_instance_ten_times(
    server: ServerProcess, model: ScriptedModel, tmp_path: Path
) -> None:
    few = questions(tmp_path, 2)
    client = SlimeClient(server.url, model.url, few, n_samples_per_prompt=2, num_epoch=10)
    client.start()
    assert drained(client, 20) == {f"math_{n}": 10 for n in range(2)}


def test_a_killed_worker_of_the_generator_costs_nothing(
    server: ServerProcess, data_set: str
) -> None:
    victims: list[int] = []

    def answer(asked: dict[str, Any], number: int) -> Answer:
        if number == 3:
            victims.extend(kill_a_worker(server.pid))
        return sums(asked, number)

    with scripted_model(answer) as model:
        client = SlimeClient(server.url, model.url, data_set)
        client.start()
        assert drained(client, 6) == {f"math_{n}": 1 for n in range(6)}
    assert victims


def test_a_server_killed_in_the_middle_goes_on_with_its_rollout(
    own_server: ServerProcess, model: ScriptedModel, data_set: str
) -> None:
    client = SlimeClient(own_server.url, model.url, data_set, n_samples_per_prompt=2, num_epoch=3)
    client.start()
    until(lambda: len(model.requests) > 10, "some answers")
    own_server.kill()
    own_server.start()
    assert drained(client, 18) == {f"math_{n}": 3 for n in range(6)}


def test_a_server_ends_in_order_and_takes_its_generator_with_it(
    own_server: ServerProcess, data_set: str
) -> None:
    with scripted_model(lambda asked, number: (503, {})) as model:
        client = SlimeClient(own_server.url, model.url, data_set)
        client.start()
        until(lambda: len(model.requests) > 1, "some questions")
        children = descendants(own_server.pid)
        assert children
        assert own_server.stop() == 128 + signal.SIGTERM  # as the command ends on SIGTERM
        until(lambda: not any(alive(pid) for pid in children), "its generator's end")


def drained(client: SlimeClient, groups: int) -> dict[str, int]:
    """How often each instance came, once so many groups did."""
    size = client.n_samples_per_prompt
    until(
        lambda: client._fetch(client.fetched, []) or len(client.fetched) >= groups * size,
        f"{groups} groups", 90,
    )  # fmt: skip
    assert patient.post(f"{client.url}/get_rollout_data", json={}).json()["success"] is False
    counts = Counter(item["instance_id"] for item in client.fetched)
    assert all(count % size == 0 for count in counts.values())
    return {name: count // size for name, count in counts.items()}


def seen(client: SlimeClient) -> set[str]:
    return {item["instance_id"] for item in client.fetched}


def kill_a_worker(server_pid: int) -> list[int]:
    """SIGKILL one that answers questions: a grandchild of the server."""
    for child in children_of(server_pid):
        for worker in children_of(child)[:1]:
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(worker)], check=True)
            return [worker]
    return []


def descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [below for child in found for below in descendants(child)]


def children_of(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
