"""slime's endpoints with its shapes, and ours; what is refused, and how."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from buffer.catalog import Catalog
from buffer.http import rollouts
from buffer.http.desk import Desk
from buffer.settings import BufferSettings
from ground.redis.connect import target_of
from ground.tasks import ended
from tests.buffer.conftest import Bench, item
from tests.buffer.serving import served
from tests.harness.servers import until

START = {
    "num_process": "1",
    "num_epoch": "3",
    "remote_engine_url": "http://127.0.0.1:1",
    "remote_buffer_url": "http://127.0.0.1:2",
    "task_type": "outside",
    "input_file": "/dev/null",
    "num_repeat_per_sample": "4",
    "max_tokens": "16",
    "sampling_params": {"max_tokens": 16, "temperature": 1.0, "top_p": 1.0},
    "tokenizer_path": "/nowhere",
    "skip_instance_ids": [],
}


async def start(client: httpx.AsyncClient, **changes: Any) -> None:
    answer = await client.post("/start_rollout", json={**START, **changes})
    assert (answer.status_code, answer.json()) == (200, {"message": "Rollout started"})


async def fill(client: httpx.AsyncClient, name: str, rewards: list[Any], at: str = "") -> None:
    for n, reward in enumerate(rewards):
        answer = await client.post(f"{at}/buffer/write", json=item(name, f"{name}{n}", reward))
        assert answer.status_code == 200, answer.text


async def read(client: httpx.AsyncClient, at: str = "", **asked: Any) -> dict[str, Any]:
    answer = await client.post(f"{at}/get_rollout_data", json=asked)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_a_write_is_echoed_whole(redis: ground.Client) -> None:
    async with served(redis) as client:
        sent = item("a", "u", 0.5, extra={"x": [1, "é"]})
        answer = await client.post("/buffer/write", json=sent)
        assert answer.status_code == 200
        assert answer.json() == {
            "success": True,
            "message": "Data has been successfully written to buffer",
            "data": {"data": [sent], "meta_info": "write to buffer"},
        }
        assert answer.headers["content-type"] == "application/json"


async def test_items_written_before_any_start_are_kept_in_groups_of_16(
    redis: ground.Client,
) -> None:
    async with served(redis) as client:
        await fill(client, "a", [0, 1] * 8)
        assert len((await read(client))["data"]["data"]) == 16


async def test_a_server_on_a_machine_that_has_just_started_knows_the_current_task(
    redis: ground.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(redis) as client:
        await start(client)
    monkeypatch.setattr("buffer.http.desk.time", SimpleNamespace(monotonic=lambda: 0.5))
    async with served(redis) as client:
        await fill(client, "a", [0, 1] * 2)
        assert len((await read(client))["data"]["data"]) == 4  # its groups are of 4, not of 16


async def test_a_read_has_upstreams_shape(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        empty = {"data": [], "meta_info": {}}
        assert await read(client) == {
            "success": False, "message": "No data available to read", "data": empty
        }  # fmt: skip
        await fill(client, "a", [1, 0, 1, 0])
        found = await read(client)
        assert (found["success"], found["message"]) == (True, "Successfully read 4 items")
        assert set(found["data"]) == {"data", "meta_info"}
        assert found["data"]["meta_info"]["finished_groups"] == ["a"]
        assert {"total_samples", "avg_reward"} <= set(found["data"]["meta_info"])
        keys = {"uid", "instance_id", "messages", "reward", "extra_info", "raw_reward"}
        assert all(keys <= set(one) for one in found["data"]["data"])


FIGURES = "def get_group_data_meta_info(data): return {'mine': sum(map(len, data.values()))}\n"


@pytest.mark.parametrize("own", ["", FIGURES])
async def test_a_read_in_which_nothing_survives_tells_ids_and_figures(
    redis: ground.Client, tmp_path: Path, own: str
) -> None:
    (tmp_path / "outside_generator.py").write_text(
        f"TASK_TYPE = 'outside'\ndef run_rollout(data): pass\n{own}"
    )
    async with served(redis, generators=tmp_path) as client:
        await start(client)
        await fill(client, "a", [0.5, -1, -1, 3])
        figures: dict[str, Any] = {
            "total_samples": 4, "num_groups": 1, "avg_group_size": 4.0, "avg_reward": 0.375,
            "reward_min": -1, "reward_max": 3,
        }  # fmt: skip
        if own:
            figures = {"mine": 4}
        for _ in range(2):
            found = await read(client)
            assert (found["success"], found["data"]["data"]) == (False, [])
            told = found["data"]["meta_info"]
            assert told["finished_groups"] == ["a"]
            assert {name: told[name] for name in figures} == figures
        await fill(client, "b", [1, 0, 1, 0])
        told = (await read(client))["data"]["meta_info"]
        assert sorted(told["finished_groups"]) == ["a", "b"]
        assert told["mine" if own else "total_samples"] == 8
        assert await read(client) == {
            "success": False, "message": "No data available to read",
            "data": {"data": [], "meta_info": {}},
        }  # fmt: skip


async def test_the_figures_tell_a_reward_as_it_was_written(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        told = (await read(client))["data"]["meta_info"]
        assert [repr(told[name]) for name in ("reward_min", "reward_max")] == ["0", "1"]
        await fill(client, "b", [1.0, 0.25, 2**60, 0.5])
        told = (await read(client))["data"]["meta_info"]
        assert repr(told["reward_min"]) == "0.25"
        assert told["reward_max"] == 2**60


@pytest.mark.parametrize("body", [b"", b"{}", b"not json", b"[]", b'{"num_samples": 4}'])
async def test_a_read_takes_any_body_as_everything(redis: ground.Client, body: bytes) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        answer = await client.post("/get_rollout_data", content=body)
        assert answer.json()["success"] is True


async def test_more_than_there_is_is_not_enough(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        found = await read(client, batch_size=8)
        message = "Not enough data. Requested 8 items but only 4 available."
        assert (found["success"], found["message"]) == (False, message)
        assert len((await read(client, batch_size=4))["data"]["data"]) == 4


async def test_a_batch_size_leaves_the_rest(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        for name in "abc":
            await fill(client, name, [1, 0, 1, 0])
        finished = [
            (await read(client, batch_size=4))["data"]["meta_info"]["finished_groups"]
            for _ in range(3)
        ]
        assert finished == [["a"], ["b"], ["c"]]


async def test_buffer_read_waits_for_what_comes(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        nothing = await client.post("/buffer/read", json={"batch_size": 4, "timeout": 0.05})
        assert nothing.json()["message"] == "Timeout waiting, no data available to read"
        unwaited = await client.post(
            "/buffer/read", json={"batch_size": 4, "timeout": 0, "wait": False}
        )
        assert unwaited.json()["message"] == "Successfully read 0 items"
        await fill(client, "a", [1, 0, 1, 0])
        found = await client.post("/buffer/read", json={"batch_size": -1, "timeout": 1})
        assert len(found.json()["data"]["data"]) == 4
        for name in ("batch_size", "timeout"):
            rest = {"batch_size": 4, "timeout": 1}
            del rest[name]
            lacking = await client.post("/buffer/read", json=rest)
            assert lacking.status_code == 400
            assert f"{name!r} is missing" in lacking.json()["message"]


async def test_peek_leaves_everything_in_place(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        for _ in range(2):
            answer = await client.request("GET", "/buffer/peek", json={"batch_size": 3})
            assert answer.json()["message"] == "Successfully previewed 3 items"
            assert [found["uid"] for found in answer.json()["data"]["data"]] == ["a0", "a1", "a2"]


async def test_stats_are_upstreams_four_figures(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        await fill(client, "open", [1])
        answer = (await client.get("/buffer/stats")).json()
        assert answer["message"] == "Buffer stats retrieved successfully"
        figures = {"current_size": 4, "max_size": 10**9, "total_written": 5, "total_read": 0}
        assert answer["data"] == {"data": [figures], "meta_info": {}}


async def test_the_root_says_that_it_runs(redis: ground.Client) -> None:
    async with served(redis) as client:
        answer = (await client.get("/")).json()
        assert answer == {"message": "Rollout Buffer Server is running", "status": "healthy"}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"", 400, "empty"),
        (b"{", 400, "not JSON"),
        (b"\xff", 400, "UTF-8"),
        (b'\xc2\xa0{"instance_id": "a"}', 400, "not JSON"),  # blanks, but not of JSON
        (b'{"instance_id": "a"}\x1c', 400, "not JSON"),
        (b"[1]", 400, "a JSON object"),
        (b"{}", 400, "no instance_id"),
        (b'{"instance_id": "a", "reward": NaN}', 400, "NaN is not JSON"),
        (b'{"instance_id": "a", "reward": -Infinity}', 400, "-Infinity is not JSON"),
        (b'{"instance_id": "a", "reward": 1e999}', 400, "not JSON"),
        (b'{"instance_id": "a", "x": [1e999]}', 400, "not JSON"),
        (b'{"instance_id": "a", "x": %s.5}' % (b"9" * 400), 400, "not JSON"),
        (b'{"instance_id": "\\ud800"}', 400, "Unicode"),
        (b'{"instance_id": "a", "x": ' + b"[" * 100_000, 400, "nested too deeply"),
        (b'{"instance_id": "a", "x": ' + b"[" * 200 + b"]" * 200 + b"}", 400, "200 levels"),
        (b'{"instance_id": "a", "x": ' + b"9" * 5000 + b"}", 400, "not JSON"),
        (b'{"instance_id": "a", "x": "' + b"y" * 1_100_000 + b'"}', 413, "MAX_ITEM_BYTES"),
    ],
)
async def test_hostile_items_are_refused_and_harm_nothing(
    redis: ground.Client, body: bytes, status: int, reason: str
) -> None:
    async with served(redis, max_item_bytes=1_000_000) as client:
        await start(client)
        answer = await client.post("/buffer/write", content=body)
        assert answer.status_code == status
        assert answer.json()["success"] is False
        assert reason in answer.json()["message"]
        await fill(client, "a", [1, 0, 1, 0])
        assert len((await read(client))["data"]["data"]) == 4


async def test_half_a_surrogate_pair_in_a_text_comes_back_as_it_was(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client, num_repeat_per_sample=2)
        for n in range(2):
            body = json.dumps(item("a", f"u{n}", n, text="\ud800"))
            assert (await client.post("/buffer/write", content=body)).status_code == 200
        found = await client.post("/get_rollout_data", json={})
        assert json.loads(found.text)["data"]["data"][0]["text"] == "\ud800"


async def test_a_full_buffer_answers_429_with_a_time(redis: ground.Client) -> None:
    async with served(redis, max_buffer_size=4) as client:
        await start(client)
        await fill(client, "a", [1])
        answer = await client.post("/buffer/write", json=item("b", "u"))
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert "PENSTOCK_MAX_BUFFER_SIZE" in answer.json()["message"]
        await fill(client, "a", [0, 0, 0, 1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_repeat_per_sample": "x"}, "num_repeat_per_sample"),
        ({"num_repeat_per_sample": 0}, "num_repeat_per_sample"),
        ({"min_valid_item_size_ratio": 2}, "min_valid_item_size_ratio"),
        ({"group_timeout_seconds": -1}, "group_timeout_seconds"),
        ({"task_type": "a/b"}, "task_type"),
        ({"task_type": ""}, "task_type"),
        ({"skip_instance_ids": "a"}, "skip_instance_ids"),
    ],
)
async def test_a_start_that_cannot_work_is_refused_with_its_reason(
    redis: ground.Client, changes: dict[str, Any], reason: str
) -> None:
    async with served(redis) as client:
        answer = await client.post("/start_rollout", json={**START, **changes})
        assert answer.status_code == 400
        assert reason in answer.json()["message"]


async def test_settings_that_do_not_go_together_are_named_alone(redis: ground.Client) -> None:
    async with served(redis) as client:
        answer = await client.post("/start_rollout", json={**START, "max_buffer_size": 3})
        assert answer.json()["message"] == (
            "settings: max_buffer_size 3 has no room for one group of group_size 4"
        )


@pytest.mark.parametrize("name", ["task_type", "num_repeat_per_sample"])
async def test_a_start_without_a_name_it_needs_is_told_which(
    redis: ground.Client, name: str
) -> None:
    async with served(redis) as client:
        given = {key: value for key, value in START.items() if key != name}
        answer = await client.post("/start_rollout", json=given)
        assert (answer.status_code, f"{name} is missing" in answer.text) == (400, True)


async def test_a_generator_that_came_later_is_known_to_all_servers_once_it_is_started(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_BEAT", 0.01)
    async with (
        served(redis, generators=tmp_path) as one, served(redis, generators=tmp_path) as other
    ):  # fmt: skip
        await other.put("/v1/tasks/outside", json={"group_size": 4})
        (tmp_path / "outside_generator.py").write_text(
            "TASK_TYPE = 'outside'\n"
            "def run_rollout(data): pass\n"
            "def normalize_group_data(group):\n"
            "    return group[0], [item | {'reward': 7} for item in group[1]]\n"
        )
        await start(one)
        async with asyncio.timeout(20):
            while "outside" not in (await other.get("/v1/generators")).json():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await fill(one, "a", [1, 0, 1, 0])
        found = await read(other)
        assert [each["reward"] for each in found["data"]["data"]] == [7] * 4


async def test_two_trainers_on_two_tasks_and_two_servers_do_not_meet(redis: ground.Client) -> None:
    async with served(redis) as one, served(redis) as other:
        await start(one, task_type="red")
        await start(other, task_type="blue", num_repeat_per_sample=2)
        for n in range(4):
            for client, at in ((one, "/tasks/blue"), (other, "/tasks/red")):
                answer = await client.post(f"{at}/buffer/write", json=item(at[-4:], f"u{n}", n % 2))
                assert answer.status_code == 200
        red = await read(one, "/tasks/red")
        blue = await read(other, "/tasks/blue")
        assert {found["instance_id"] for found in red["data"]["data"]} == {"/red"}
        assert {found["instance_id"] for found in blue["data"]["data"]} == {"blue"}
        assert (len(red["data"]["data"]), len(blue["data"]["data"])) == (4, 2)
        assert not (await read(other, "/tasks/red"))["success"]


async def test_a_fresh_start_drops_the_old_and_a_resumed_one_keeps_it(
    redis: ground.Client,
) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        await start(client, skip_instance_ids=["z"])
        found = await read(client)
        assert found["data"]["meta_info"]["finished_groups"] == ["a"]
        await start(client, skip_instance_ids=["a"])
        assert not (await read(client))["success"]
        await start(client, skip_instance_ids=["other"])
        assert (await read(client))["data"]["meta_info"]["finished_groups"] == ["a"]
        await start(client, num_epoch="1")
        assert not (await read(client))["success"]


async def test_what_a_replaced_rollout_still_sends_is_refused(redis: ground.Client) -> None:
    found: Any = redis
    key = "penstock:buffer:{default/outside}:rollout"
    async with served(redis) as client:
        await start(client)
        at = f"/tasks/outside/rollouts/{found.hget(key, 'digest').decode()}"
        assert (await client.post(f"{at}/buffer/write", json=item("a", "u"))).status_code == 200
        await start(client, num_epoch="7")
        late = await client.post(f"{at}/buffer/write", json=item("a", "v"))
        assert late.status_code == 410
        assert "another rollout" in late.json()["message"]
        assert (await client.get("/v1/tasks/outside/stats")).json()["open_groups"] == 0


async def test_a_token_is_asked_of_everybody(redis: ground.Client) -> None:
    async with served(redis, buffer_token="secret") as client:
        assert (await client.get("/")).status_code == 401
        assert (await client.post("/buffer/write", json=item("a", "u"))).status_code == 401
        assert (await client.get("/healthz")).status_code == 200
        client.headers["Authorization"] = "Bearer secret"
        assert (await client.get("/")).status_code == 200
        assert (await client.post("/buffer/write", json=item("a", "u"))).status_code == 200


async def test_a_native_reader_takes_extends_acknowledges_and_fetches(
    redis: ground.Client,
) -> None:
    async with served(redis) as client:
        at = "/v1/tasks/native"
        assert (await client.put(at, json={"group_size": 2})).json()["group_size"] == 2
        items = [item(name, f"{name}{n}", n) for name in "ab" for n in range(2)]
        written = await client.post(f"{at}/items", json={"items": items})
        assert written.json() == {"outcomes": ["stored"] * 4}
        batch = (await client.post(f"{at}/take", json={"groups": 1})).json()
        assert [group["instance_id"] for group in batch["groups"]] == ["a"]
        receipt = f"{at}/batches/{batch['receipt']}"
        assert (await client.post(f"{receipt}/extend", json={"seconds": 60})).status_code == 200
        assert (await client.get(receipt)).json() == batch
        assert (await client.post(f"{receipt}/ack")).json() == {"acknowledged": True}
        assert (await client.post(f"{receipt}/extend", json={"seconds": 60})).status_code == 409
        second = (await client.post(f"{at}/take", json={"wait": 1})).json()
        again = f"{at}/batches/{second['receipt']}"
        assert (await client.post(f"{again}/release")).json() == {"released": True}
        assert (await client.post(f"{again}/ack")).status_code == 409
        assert (await client.post(f"{at}/take", json={})).status_code == 200
        assert (await client.post(f"{at}/take", json={})).status_code == 204


async def test_settings_that_a_task_was_given_hold_for_its_rollouts(redis: ground.Client) -> None:
    async with served(redis, batch_lease=77.0) as client:
        at = "/v1/tasks/outside"
        asked = {"group_size": 2, "dialect": "v1", "min_valid_item_size_ratio": 0.9}
        assert (await client.put(at, json=asked)).json()["lease"] == 77.0
        await start(client)
        found = (await client.get(at)).json()
        assert (found["group_size"], found["dialect"], found["lease"]) == (4, "v1", 77.0)
        await fill(client, "a", [1, 1, 0, 0])
        data = (await read(client))["data"]
        assert [one["reward"] for one in data["data"]] == [1, 1, 0, 0]  # raw, as v1 has them
        await start(client, dialect="v0", max_tokens="1")
        found = (await client.get(at)).json()
        assert (found["dialect"], found["min_valid_item_size_ratio"]) == ("v0", 0.9)
        await start(client, max_tokens="2")
        assert (await client.get(at)).json()["dialect"] == "v1"
        await client.put(at, json={"group_size": 3})
        await start(client, max_tokens="3")
        found = (await client.get(at)).json()
        assert (found["dialect"], found["min_valid_item_size_ratio"]) == ("v0", 0.7)


async def test_settings_that_a_library_gave_hold_for_rollouts_too(
    redis: ground.Client, make: Callable[..., Bench]
) -> None:
    bench = make("outside", group_size=2)
    await bench.buffer.configure(TaskConfig(group_size=2, dialect="v1"))
    async with served(redis) as client:
        await start(client)
        found = (await client.get("/v1/tasks/outside")).json()
        assert (found["group_size"], found["dialect"]) == (4, "v1")


async def test_settings_for_another_task_turn_no_trainer_away_from_its_own(
    redis: ground.Client,
) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 1, 0, 0])
        await client.put("/v1/tasks/code", json={"group_size": 2})
        assert (await client.get("/v1/tasks")).json() == {"tasks": ["code", "outside"]}
        assert (await read(client))["data"]["meta_info"]["finished_groups"] == ["a"]


async def test_a_misspelt_field_is_refused(redis: ground.Client) -> None:
    async with served(redis) as client:
        at = "/v1/tasks/native"
        for misspelt in ({"group_timeout": 5}, {"max_byte": 1}):
            refused = await client.put(at, json={"group_size": 2} | misspelt)
            assert refused.status_code == 422
            assert next(iter(misspelt)) in refused.json()["message"]
        await client.put(at, json={"group_size": 2})
        refused = await client.post(f"{at}/take", json={"group": 1})
        assert (refused.status_code, "group: " in refused.json()["message"]) == (422, True)


async def test_everything_can_be_looked_at(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        await fill(client, "open {x}", [1])
        at = "/v1/tasks/outside"
        assert (await client.get("/v1/tasks")).json() == {"tasks": ["outside"]}
        assert "math" in (await client.get("/v1/generators")).json()
        stats = (await client.get(f"{at}/stats")).json()
        assert (stats["ready_groups"], stats["open_groups"], stats["stored"]) == (1, 1, 5)
        listed = (await client.get(f"{at}/groups", params={"state": "open"})).json()["groups"]
        assert [(g["instance_id"], g["items"]) for g in listed] == [("open {x}", 1)]
        one = await client.get(f"{at}/group", params={"instance_id": "open {x}"})
        assert [found["uid"] for found in one.json()["items"]] == ["open {x}0"]
        page = (await client.get("/metrics")).text
        assert 'penstock_buffer_groups{run="default",state="ready",task="outside"} 1.0' in page
        assert (
            'penstock_buffer_items_total{outcome="stored",run="default",task="outside"} 5.0' in page
        )


async def test_an_unknown_task_is_404(redis: ground.Client) -> None:
    async with served(redis) as client:
        for path in ("/v1/tasks/nobody/stats", "/tasks/nobody/buffer/stats"):
            assert (await client.get(path)).status_code == 404
        assert (await client.post("/tasks/x/buffer/write", json=item("a", "u"))).status_code == 404


async def test_batches_can_also_be_dumped_to_files(redis: ground.Client, tmp_path: Path) -> None:
    async with served(redis, dump_rollouts=tmp_path) as client:
        await start(client)
        await fill(client, "a", [1, 0, 1, 0])
        found = await read(client)
        (file,) = tmp_path.glob("rollout_data_*.json")
        assert json.loads(file.read_text()) == found["data"]["data"]


@pytest.mark.parametrize("nonsense", ["raise KeyError(1)", "return None", "time.sleep(30)",
                                      "raise SystemExit", "return (group[0], [1])"])  # fmt: skip
async def test_a_custom_function_harms_its_group_alone(
    redis: ground.Client, tmp_path: Path, nonsense: str, make: Callable[..., Bench]
) -> None:
    (tmp_path / "odd_generator.py").write_text(
        "import time\nTASK_TYPE = 'odd'\ndef run_rollout(data): pass\n"
        "def normalize_group_data(group):\n"
        f"    if group[0] == 'bad':\n        {nonsense}\n    return group\n"
    )
    # What harms no other group by taking long is the only one that the limit is for; the good
    # group's own call must come within it on a slow machine too.
    limit = 8.0 if "sleep" in nonsense else 60.0
    async with served(redis, generators=tmp_path, function_timeout=limit) as client:
        assert (await client.put("/v1/tasks/odd", json={"group_size": 2})).status_code == 200
        for name in ("bad", "good"):
            await fill(client, name, [1, 0], "/tasks/odd")
        found = await read(client, "/tasks/odd")
        assert found["data"]["meta_info"]["finished_groups"] == ["good"]
        listed = (await client.get("/v1/tasks/odd/quarantine")).json()["groups"]
        assert [group["instance_id"] for group in listed] == ["bad"]
        assert listed[0]["reason"]


async def test_a_forgotten_task_does_not_stop_the_clock_of_the_others(
    redis: ground.Client, make: Callable[..., Bench]
) -> None:
    tasks = ("first", "forgotten", "last")
    benches = {name: make(name) for name in tasks}
    for bench in benches.values():
        await bench.fill("a", [1])
    forgotten = benches["forgotten"]
    forgotten.redis.delete(*forgotten.redis.keys(forgotten.key("*")))
    async with served(redis):
        for name in ("first", "last"):
            await asyncio.to_thread(until, benches[name].beats, f"a look at {name}")


async def test_a_take_whose_answer_cannot_be_built_gives_its_batch_back(
    redis: ground.Client, make: Callable[..., Bench]
) -> None:
    bench = make("outside")
    await bench.fill("a", [1, 0, 1, 0])
    bench.redis.hset(bench.key("seen"), "m2", "inf")
    async with served(redis) as client:
        with pytest.raises(ValueError, match="JSON"):
            await client.post("/v1/tasks/outside/take", json={})
        again = await client.post("/v1/tasks/outside/take", json={})
        assert [group["instance_id"] for group in again.json()["groups"]] == ["a"]


async def test_what_redis_refuses_for_one_task_keeps_no_other_from_being_taken_over(
    redis: ground.Client, make: Callable[..., Bench]
) -> None:
    spoilt, lost = make("a-spoilt"), make("b-lost")
    for bench in (spoilt, lost):
        await bench.fill("a", [1])
    spoilt.redis.set(spoilt.key("rollout"), "of another type")
    orphan = {"owner": "dead", "state": "running", "until": 0, "digest": "d", "payload": "{}"}
    lost.redis.hset(lost.key("rollout"), mapping=orphan)
    async with served(redis):
        await asyncio.to_thread(
            until, lambda: lost.redis.hget(lost.key("rollout"), "owner") != b"dead", "a new owner"
        )


def brief_generator(folder: Path) -> Path:
    """A generator that notes that it ran, and where it does."""
    ran = folder / "ran"
    (folder / "brief_generator.py").write_text(
        f"TASK_TYPE = 'brief'\ndef run_rollout(data): open({str(ran)!r}, 'w').close()\n"
    )
    return ran


async def test_a_server_without_the_generator_leaves_a_rollout_to_one_that_has_it(
    redis: ground.Client, make: Callable[..., Bench], tmp_path: Path
) -> None:
    ran, bench = brief_generator(tmp_path), make("brief")
    await bench.fill("a", [1])
    said = json.dumps({**START, "task_type": "brief"})
    orphan = {"owner": "dead", "state": "running", "until": 0, "digest": "d", "payload": said}
    bench.redis.hset(bench.key("rollout"), mapping=orphan)
    async with served(redis):
        await asyncio.to_thread(
            until, lambda: bench.redis.hget(bench.key("rollout"), "stands_in") == b"1", "one"
        )
        async with served(redis, generators=tmp_path):
            await asyncio.to_thread(until, ran.exists, "the generator")


async def test_a_rollout_whose_takeover_was_not_heard_runs_all_the_same(
    redis: ground.Client, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(rollouts.Rollouts, "_run", lambda _, found: ran.append(found.digest))
    bench = make("math")
    orphan = {"owner": "dead", "state": "running", "until": 0, "digest": "d", "payload": "{}"}
    bench.redis.hset(bench.key("rollout"), mapping=orphan)
    desk = Desk(target_of(redis), "default", BufferSettings())
    server = rollouts.Rollouts(desk, "http://127.0.0.1:1")
    await server._call("watch", "math", "", "1", "1")  # its reply was lost
    await server._watch("math")
    assert ran == ["d"]
    await desk.aclose()


async def test_a_generator_that_redis_kept_from_starting_is_started_later(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = brief_generator(tmp_path)
    finished_rounds, outages = Catalog.finished_rounds, [ground.RedisUnavailable("gone")]

    async def fails_once(catalog: Catalog, skip: Any = ()) -> Any:
        if outages:
            raise outages.pop()
        return await finished_rounds(catalog, skip)

    monkeypatch.setattr(Catalog, "finished_rounds", fails_once)
    async with served(redis, generators=tmp_path) as client:
        await start(client, task_type="brief")
        await asyncio.to_thread(until, ran.exists, "the generator")


async def test_a_rollout_whose_server_died_preparing_it_is_started_by_the_next_call(
    redis: ground.Client, make: Callable[..., Bench], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rollouts, "_PAUSE", 0.0)
    ran, bench = brief_generator(tmp_path), make("brief")
    payload = {**START, "task_type": "brief"}
    digest = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
    dead = {"owner": "dead", "state": "preparing", "until": 2**53, "digest": digest}
    async with served(redis, generators=tmp_path) as client:
        bench.redis.hset(bench.key("rollout"), mapping=dead)
        answer = await client.post("/start_rollout", json=payload)
        assert (answer.status_code, ran.exists()) == (503, False)
        bench.redis.hset(bench.key("rollout"), "until", 0)  # its lease ends
        await start(client, task_type="brief")
        await asyncio.to_thread(until, ran.exists, "the generator")


async def test_the_end_of_a_rollout_is_noted_once_redis_takes_it(
    redis: ground.Client, make: Callable[..., Bench], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(rollouts, "_PAUSE", 0.0)
    bench, outages = make("brief"), [ground.RedisUnavailable("gone")]
    (tmp_path / "brief_generator.py").write_text(
        "TASK_TYPE = 'brief'\ndef run_rollout(data): pass\n"
    )
    call = rollouts.Rollouts._call

    async def fails_once(self: Any, script: str, task: str, *args: str) -> Any:
        if args[-1] == "finished" and outages:
            raise outages.pop()
        return await call(self, script, task, *args)

    monkeypatch.setattr(rollouts.Rollouts, "_call", fails_once)
    async with served(redis, generators=tmp_path) as client:
        await start(client, task_type="brief")
        state = lambda: bench.redis.hget(bench.key("rollout"), "state")  # noqa: E731
        await asyncio.to_thread(until, lambda: state() == b"finished", "the end")
    assert outages == []


@pytest.mark.parametrize("skip", [[], ["saved"]])
async def test_a_trainer_that_comes_back_with_an_old_list_gets_what_its_death_cost(
    redis: ground.Client, skip: list[str]
) -> None:
    async with served(redis) as client:
        await start(client, skip_instance_ids=skip)
        for name in ("a", "b"):
            await fill(client, name, [1, 0, 1, 0])
            assert (await read(client))["data"]["meta_info"]["finished_groups"] == [name]
        await start(client, skip_instance_ids=skip)
        assert (await read(client))["data"]["meta_info"]["finished_groups"] == ["a", "b"]


async def test_a_start_that_was_replaced_leaves_the_task_to_the_other(
    redis: ground.Client, make: Callable[..., Bench]
) -> None:
    stopping, may_end = asyncio.Event(), asyncio.Event()

    async def generator_that_ends_slowly() -> None:
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
            stopping.set()

    desk = Desk(target_of(redis), "default", BufferSettings())
    server = rollouts.Rollouts(desk, "http://127.0.0.1:1")
    server._running["outside"] = asyncio.create_task(generator_that_ends_slowly())
    await asyncio.sleep(0)
    first = asyncio.create_task(server.start({**START, "num_repeat_per_sample": 2}))
    await stopping.wait()
    await server.start(START)
    await make("outside").fill("a", [1])
    may_end.set()
    assert await first == "another rollout of the task was started meanwhile"
    buffer = desk.buffer("outside")
    assert (await buffer.config()).group_size == 4
    assert len(await buffer.catalog.items("a")) == 1
    await desk.aclose()


async def test_a_start_that_takes_long_keeps_its_lease(
    redis: ground.Client, make: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_BEAT", 0.02)
    monkeypatch.setattr(rollouts, "_PAUSE", 0.0)
    bench, may_end, reset = make("outside"), asyncio.Event(), RolloutBuffer.reset

    async def takes_long(buffer: RolloutBuffer) -> None:
        await may_end.wait()
        await reset(buffer)

    monkeypatch.setattr(RolloutBuffer, "reset", takes_long)
    async with served(redis) as client:
        first = asyncio.create_task(client.post("/start_rollout", json=START))
        state = lambda *names: bench.redis.hmget(bench.key("rollout"), *names)  # noqa: E731
        await asyncio.to_thread(until, lambda: state("state") == [b"preparing"], "the start")
        bench.redis.hset(bench.key("rollout"), "until", 0)
        await asyncio.to_thread(until, lambda: state("until") != [b"0"], "a renewal")
        again = await client.post("/start_rollout", json=START)
        assert (again.status_code, first.done()) == (503, False)
        may_end.set()
        assert (await first).status_code == 200
        assert state("state") == [b"running"]


async def test_a_look_from_before_a_rollout_ran_does_not_stop_it(
    redis: ground.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "_BEAT", 0.02)
    ran, looked, begun = brief_generator(tmp_path), asyncio.Event(), asyncio.Event()
    call, run, reset = rollouts.Rollouts._call, rollouts.Rollouts._run, RolloutBuffer.reset

    async def heard_late(self: Any, script: str, task: str, *args: str) -> Any:
        reply = await call(self, script, task, *args)
        if script == "watch" and args[0]:  # it is being prepared
            looked.set()
            await begun.wait()
        return reply

    async def resets_once_looked_at(buffer: RolloutBuffer) -> None:
        await looked.wait()
        await reset(buffer)

    def runs(*args: Any) -> None:
        run(*args)
        begun.set()

    monkeypatch.setattr(rollouts.Rollouts, "_call", heard_late)
    monkeypatch.setattr(rollouts.Rollouts, "_run", runs)
    monkeypatch.setattr(RolloutBuffer, "reset", resets_once_looked_at)
    async with served(redis, generators=tmp_path) as client:
        await start(client, task_type="brief")
        await asyncio.to_thread(until, ran.exists, "the generator", 20)


async def test_a_chore_that_lost_its_cancellation_is_cancelled_again() -> None:
    lost = 0

    async def chore() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                lost += 1
                if lost > 1:
                    raise

    task = asyncio.create_task(chore())
    await asyncio.sleep(0)
    await ended([task])
    assert (lost, task.cancelled()) == (2, True)


@pytest.mark.parametrize(
    "wrong",
    [{"task_type": None}, {"task_type": 7}, {"skip_instance_ids": {}}, {"skip_instance_ids": ""},
     {"skip_instance_ids": ["x" * 1025]}],
)  # fmt: skip
async def test_a_start_that_the_document_forbids_is_refused(
    redis: ground.Client, wrong: dict[str, Any]
) -> None:
    async with served(redis) as client:
        answer = await client.post("/start_rollout", json={**START, **wrong})
        assert answer.status_code == 400
        assert (await client.get("/v1/tasks")).json() == {"tasks": []}


async def test_what_the_document_allows_is_taken(redis: ground.Client) -> None:
    async with served(redis) as client:
        await start(client, skip_instance_ids=["x" * 1024, "é" * 1024, 7], task_type="a")
        await start(client, skip_instance_ids=None, task_type="b")
        odd = {"round_number": 3.0}, {"messages": {}}, {"instance_id": "é" * 1024}
        for number, fields in enumerate(odd):
            sent = {**item("a", f"u{number}", 0.5), **fields}
            assert (await client.post("/buffer/write", json=sent)).status_code == 200


async def test_a_killed_generator_is_waited_for_though_its_wait_is_cancelled_twice() -> None:
    over, asked = asyncio.Event(), asyncio.Event()

    class Killed:
        async def wait(self) -> None:
            asked.set()
            await over.wait()

    killed: Any = Killed()
    waiting = asyncio.create_task(rollouts._reaped(killed))
    await asyncio.wait_for(asked.wait(), 100)
    for _ in range(2):
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=0.05)
        assert not done, "its process still runs"
    over.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
