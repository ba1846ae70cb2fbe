"""What only a server with real sockets shows: readers that go away, bodies that never end."""

import asyncio
import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from ground.server.server import running_server
from tests.buffer.conftest import item
from tests.buffer.serving import JSON, ServerProcess
from tests.harness import patient
from tests.harness.remains import until_nothing_runs_in
from tests.harness.servers import PrivateRedis, fill_disk_of, server_that_may_fail_to_save, until

GROUPS = 100
AT = "/tasks/big"
HEAD = "Host: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.fixture
def server(real_redis: object, running: ServerProcess) -> ServerProcess:
    patient.put(f"{running.url}/v1{AT}", json={"group_size": 2}).raise_for_status()
    return running


def fill(url: str) -> None:
    """Some 10 MB of finished groups."""

    async def write() -> None:
        buffer = RolloutBuffer(url, "big", TaskConfig(group_size=2))
        text = "x" * 50_000
        for n in range(GROUPS):
            items = [item(f"g{n}", f"{n}-{i}", i, text=text) for i in range(2)]
            await buffer.write_many(items)
        await buffer.aclose()

    asyncio.run(write())


def stats(server: ServerProcess) -> dict[str, Any]:
    found: dict[str, Any] = patient.get(f"{server.url}/v1{AT}/stats").json()
    return found


def test_a_server_with_a_redis_of_its_own_goes_on_when_that_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    own = {"PENSTOCK_REDIS_URL": "", "PENSTOCK_DATA_DIR": str(data)}
    with ServerProcess("", tmp_path, **own) as server:
        patient.put(f"{server.url}/v1{AT}", json={"group_size": 2}).raise_for_status()
        items = {"items": [item("g", "1", 1)]}
        patient.post(f"{server.url}/v1{AT}/items", json=items).raise_for_status()
        redis = running_server(data)
        assert redis is not None
        with contextlib.closing(ground.connect(redis)) as client:
            info: Any = client.info("server")
        os.kill(info["process_id"], signal.SIGKILL)
        until(lambda: patient.get(f"{server.url}/healthz").status_code == 200, "the server")
        assert stats(server)["stored"] == 1
        assert "redis ended; it is started again with its data" in server.log.read_text()
    until_nothing_runs_in(data)


def test_a_redis_whose_disk_is_full_is_503_with_its_words_and_no_traceback(
    tmp_path: Path,
) -> None:
    with (
        server_that_may_fail_to_save(tmp_path / "redis") as redis,
        ServerProcess(redis.url, tmp_path, PENSTOCK_REDIS_PATIENCE="0.5") as server,
    ):
        patient.put(f"{server.url}/v1{AT}", json={"group_size": 2}).raise_for_status()
        fill_disk_of(redis)
        write = {"items": [item("g", "1", 1)]}
        answers = [
            patient.post(f"{server.url}/v1{AT}/items", json=write),
            patient.post(f"{server.url}{AT}/buffer/write", json=item("g", "1", 1)),
            patient.put(f"{server.url}/v1{AT}", json={"group_size": 2}),
        ]
        assert [answer.status_code for answer in answers] == [503, 503, 503]
        assert all("MISCONF" in answer.json()["message"] for answer in answers)
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert "Traceback" not in server.log.read_text()


def test_a_batch_whose_reader_went_away_is_ready_again(
    server: ServerProcess, shared_server: PrivateRedis
) -> None:
    fill(shared_server.url)
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", server.port))
    reader.sendall(
        f"POST {AT}/get_rollout_data HTTP/1.1\r\n{HEAD}Content-Length: 2\r\n\r\n{{}}".encode()
    )
    assert reader.recv(1000).startswith(b"HTTP/1.1 200")
    assert stats(server)["leased_groups"] == GROUPS
    reader.close()
    until(lambda: stats(server)["ready_groups"] == GROUPS, "the batch to come back")
    found = patient.post(f"{server.url}{AT}/get_rollout_data", json={}).json()
    assert len(found["data"]["data"]) == 2 * GROUPS


def test_a_batch_that_arrived_is_consumed_and_can_be_fetched_again(
    server: ServerProcess, shared_server: PrivateRedis
) -> None:
    fill(shared_server.url)
    first = patient.post(f"{server.url}{AT}/get_rollout_data", json={}).json()
    second = patient.post(f"{server.url}{AT}/get_rollout_data", json={}).json()
    assert second["success"] is False
    until(lambda: stats(server)["consumed"] == GROUPS, "the batch to be consumed")
    receipt = first["data"]["meta_info"]["receipt"]
    again = patient.get(f"{server.url}/v1{AT}/batches/{receipt}").json()
    fetched = [found for group in again["groups"] for found in group["items"]]
    assert fetched == first["data"]["data"]


def test_an_item_of_50_mb_is_refused_and_the_server_goes_on(server: ServerProcess) -> None:
    body = b'{"instance_id": "a", "x": "' + b"y" * 50_000_000 + b'"}'
    try:
        answer = patient.post(
            f"{server.url}{AT}/buffer/write", content=body, headers=JSON, timeout=60
        )
        assert answer.status_code == 413
    except httpx.TransportError:
        pass  # refused before it was all sent: the connection is closed under the writer
    assert patient.post(f"{server.url}{AT}/buffer/write", json=item("a", "u")).status_code == 200


def test_a_writer_that_stops_in_the_middle_harms_nobody(server: ServerProcess) -> None:
    lines = []
    for _ in range(20):
        line = socket.create_connection(("127.0.0.1", server.port))
        line.sendall(
            f"POST {AT}/buffer/write HTTP/1.1\r\n{HEAD}Content-Length: 500\r\n\r\n{{".encode()
        )
        lines.append(line)
    assert patient.post(f"{server.url}{AT}/buffer/write", json=item("a", "u")).status_code == 200
    for line in lines:
        line.close()
    assert patient.post(f"{server.url}{AT}/buffer/write", json=item("a", "v")).status_code == 200
    assert stats(server)["stored"] == 2


def test_ten_thousand_tiny_items_at_once_are_all_stored(server: ServerProcess) -> None:
    async def flood() -> set[int]:
        limits = httpx.Limits(max_connections=50)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=120) as client:
            items = [{"instance_id": n // 100, "uid": n} for n in range(10_000)]
            parts = [items[at : at + 50] for at in range(0, len(items), 50)]
            answers = await asyncio.gather(
                *(client.post(f"/v1{AT}/items", json={"items": part}) for part in parts)
            )
            return {answer.status_code for answer in answers}

    assert asyncio.run(flood()) == {200}
    found = stats(server)
    assert found["stored"] == 10_000


def test_a_large_take_is_sent_while_others_are_served(
    server: ServerProcess, shared_server: PrivateRedis
) -> None:
    fill(shared_server.url)
    with httpx.stream(
        "POST", f"{server.url}/v1{AT}/take", json={}, headers=JSON, timeout=100
    ) as large:
        chunks = large.iter_bytes()
        first = next(chunks)
        assert "content-length" not in large.headers, "it is not encoded as a whole"
        assert patient.get(f"{server.url}/healthz").status_code == 200
        batch = json.loads(first + b"".join(chunks))
    assert len(batch["groups"]) == GROUPS
    assert [*batch] == ["receipt", "groups", "finished_groups", "meta_info"]
    url = f"{server.url}/v1{AT}/batches/{batch['receipt']}"
    assert patient.get(url).json() == batch
    patient.post(f"{url}/ack", json={}).raise_for_status()


def test_a_take_over_http_may_be_bounded_in_bytes(
    server: ServerProcess, shared_server: PrivateRedis
) -> None:
    fill(shared_server.url)
    take = {"max_bytes": 1_000_000}
    batch = patient.post(f"{server.url}/v1{AT}/take", json=take).json()
    assert len(batch["groups"]) == 9, "of 100 kB and a little each"
    assert stats(server)["ready_groups"] == GROUPS - 9


def test_a_v1_reader_that_goes_away_gives_its_batch_back(
    server: ServerProcess, shared_server: PrivateRedis
) -> None:
    fill(shared_server.url)
    with httpx.stream(
        "POST", f"{server.url}/v1{AT}/take", json={}, headers=JSON, timeout=100
    ) as large:
        next(large.iter_bytes())
    until(lambda: stats(server)["ready_groups"] == GROUPS, "its groups")
