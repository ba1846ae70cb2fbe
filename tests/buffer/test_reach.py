"""What a rollout may read and call, and who may start one."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import ground
from buffer.http import rollouts
from tests.buffer.serving import ServerProcess, served
from tests.buffer.slime_clients import SlimeClient, questions, sums
from tests.harness import patient
from tests.harness.scripted_model import scripted_model
from tests.harness.servers import PrivateRedis, until

Given = asyncio.Queue[dict[str, Any]]
START = {
    "task_type": "math", "num_repeat_per_sample": "2", "remote_engine_url": "http://127.0.0.1:1",
    "remote_buffer_url": "http://127.0.0.1:8889",
}  # fmt: skip


@pytest.fixture(autouse=True)
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """What generators would have been given."""
    payloads: Given = asyncio.Queue()

    async def generate(self: Any, task: str, payload: dict[str, Any]) -> int:
        payloads.put_nowait(payload)
        return 0

    monkeypatch.setattr(rollouts.Rollouts, "_generate", generate)
    return payloads


@pytest.mark.parametrize("file", ["/etc/passwd", "data/../../secret", "data/link", "datas/x"])
async def test_a_file_outside_of_the_named_folders_is_refused(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str,
    given: Given,
) -> None:  # fmt: skip
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    monkeypatch.chdir(tmp_path)
    for folders in ("", "data", f"{tmp_path}/elsewhere,data"):
        async with served(redis, input_folders=folders) as client:
            answer = await client.post("/start_rollout", json={**START, "input_file": file})
            assert answer.status_code == 403
            assert "PENSTOCK_INPUT_FOLDERS" in answer.json()["message"]
            assert (await client.get("/v1/tasks")).json() == {"tasks": []}
    assert given.empty()


@pytest.mark.parametrize("file", ["", "a\0b", "\ud800", "loop", 7, ["data/x"], {}])
async def test_what_names_no_file_is_refused_in_a_sentence(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Any, given: Given
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)
    async with served(redis, input_folders="data") as client:
        body = json.dumps({**START, "input_file": file})
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/start_rollout", content=body, headers=headers)
        assert answer.status_code in (400, 403)
        assert answer.json()["message"].startswith("input_file ")
    assert given.empty()


async def test_a_file_in_a_named_folder_is_read(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    given: Given,
) -> None:  # fmt: skip
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "rows.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    for number, file in enumerate(("data/rows.jsonl", f"{tmp_path}/data/a/../rows.jsonl")):
        async with served(redis, input_folders="elsewhere, data") as client:
            start = {**START, "input_file": file, "task_type": "math", "num_epoch": number}
            assert (await client.post("/start_rollout", json=start)).status_code == 200
            assert (await asyncio.wait_for(given.get(), 100))["input_file"] == file


async def test_a_file_that_is_not_there_is_refused_and_starts_nothing(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Given
) -> None:
    monkeypatch.setattr(rollouts, "_PAUSE", 0.0)
    async with served(redis, input_folders=str(tmp_path)) as client:
        start = {**START, "input_file": f"{tmp_path}/rows.jsonl"}
        answer = await client.post("/start_rollout", json=start)
        assert answer.status_code == 400
        message = answer.json()["message"]
        assert message.startswith(f"input_file '{tmp_path}/rows.jsonl' cannot be read")
        assert message.endswith("No such file or directory")
        assert (await client.get("/v1/tasks")).json() == {"tasks": []}
        assert given.empty()
        (tmp_path / "rows.jsonl").touch()  # slime's client asks again
        assert (await client.post("/start_rollout", json=start)).status_code == 200
        assert (await asyncio.wait_for(given.get(), 60))["input_file"] == start["input_file"]


@pytest.mark.parametrize("name", ["remote_engine_url", "remote_buffer_url"])
async def test_engines_may_be_limited_to_hosts(redis: ground.Client, name: str) -> None:
    allowed = "engine.example, 10.0.0.5:30000,127.0.0.1,[fd00::1]"
    async with served(redis, engine_hosts=allowed) as client:
        for url in (
            "http://engine.example:1/v1", "https://ENGINE.example", "http://10.0.0.5:30000",
            "http://[fd00::1]:80/", "http://u:p@engine.example/",
        ):  # fmt: skip
            answer = await client.post("/start_rollout", json={**START, name: url})
            assert answer.status_code == 200, url
        for url in (
            "http://evil.example", "http://10.0.0.5:30001", "http://engine.example@evil.example",
            "http://evil.example\\@engine.example", "http://engine.example.evil.example",
            "ftp://engine.example", "http://[fd00::2]", "http://engine.example:x", "", 7, "//x",
        ):  # fmt: skip
            answer = await client.post("/start_rollout", json={**START, name: url})
            assert answer.status_code == 403, url
            assert "PENSTOCK_ENGINE_HOSTS" in answer.json()["message"]


async def test_the_servers_token_reaches_its_generator_and_is_not_kept(
    redis: ground.Client, given: Given
) -> None:
    async with served(redis, buffer_token=SecretStr("s3cret")) as client:
        client.headers["Authorization"] = "Bearer s3cret"
        url = "http://any:s3cret@127.0.0.1:8889"
        answer = await client.post("/start_rollout", json={**START, "remote_buffer_url": url})
        assert answer.status_code == 200
        url = (await asyncio.wait_for(given.get(), 100))["remote_buffer_url"]
    assert url.startswith("http://any:s3cret@127.0.0.1:8889/tasks/math/rollouts/")
    kept = redis.hgetall("penstock:buffer:{default/math}:rollout")
    assert kept
    assert "s3cret" not in str(kept)


def test_slimes_clients_reach_a_server_with_a_token_by_its_url(
    real_redis: object, shared_server: PrivateRedis, tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    with (
        ServerProcess(shared_server.url, folder, PENSTOCK_BUFFER_TOKEN="s3cret") as server,
        scripted_model(sums) as model,
    ):
        for url in (server.url, server.url.replace("//", "//any:wrong@")):
            answer = patient.post(f"{url}/get_rollout_data", json={})
            assert answer.status_code == 401
        known = server.url.replace("//", "//any:s3cret@")
        client = SlimeClient(known, model.url, questions(tmp_path, 4))
        client.start()
        stats = f"{known}/v1/tasks/math/stats"
        until(lambda: patient.get(stats).json().get("stored") == 16, "every answer", 120)
        assert "s3cret" not in server.log.read_text()
