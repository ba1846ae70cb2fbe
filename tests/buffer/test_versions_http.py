"""Versions and slots over HTTP, and what readers get that know of neither."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import ground
from tests.buffer.conftest import item
from tests.buffer.serving import JSON, ServerProcess, served

AT = "/v1/tasks/math"
POLICY = {"groups_per_version": 2, "max_age": 2, "depth": 1}


@pytest.fixture
async def client(redis: ground.Client) -> AsyncIterator[httpx.AsyncClient]:
    """A server with groups of two, two groups a version, at version 10."""
    async with served(redis) as client:
        await said(client.put(AT, json={"group_size": 2}))
        assert (await said(client.put(f"{AT}/policy", json=POLICY)))["when_old"] == "wait"
        await publish(client, 10)
        yield client


async def said(asked: Any) -> Any:
    answer = await asked
    assert answer.status_code == 200, answer.text
    return answer.json()


async def publish(client: httpx.AsyncClient, version: int, **more: Any) -> Any:
    body = {"version": version, "owner": "trainer-1", **more}
    return await said(client.post(f"{AT}/versions", json=body))


async def slots(client: httpx.AsyncClient, n: int, *names: str, wait: float = 0.0) -> list[Any]:
    body = {"n": n, "owner": "g1", "wait": wait, "instances": [{"instance_id": x} for x in names]}
    found: list[Any] = (await said(client.post(f"{AT}/slots", json=body)))["slots"]
    return found


def under(slot: dict[str, Any], name: str, n: int, **more: Any) -> dict[str, Any]:
    return item(name, f"{name}{n}", n, slot=slot["id"], fence=slot["fence"], **more)


async def test_a_generator_and_a_trainer_meet_over_http(client: httpx.AsyncClient) -> None:
    found = await slots(client, 10, "a", "b")
    assert [slot["instance_id"] for slot in found] == ["a", "b", None, None]
    items = [under(found[0], "a", n) for n in range(2)]
    await said(client.post(f"{AT}/items", json={"items": items}))
    held = [{"id": slot["id"], "fence": slot["fence"]} for slot in found]
    renewed = await said(client.post(f"{AT}/slots/renew", json={"slots": held}))
    assert renewed == {"version": 10, "lease": 60.0, "late": [], "lost": [held[0]["id"]]}
    taken = await said(client.post(f"{AT}/take", json={}))
    assert (taken["meta_info"]["version"], taken["meta_info"]["ages"]) == (10, [0])
    assert (await publish(client, 12, saved=11)) == {
        "version": 12, "line": 1, "stale": 0, "returned": 0, "gone": 0
    }  # fmt: skip
    nothing = await said(client.post(f"{AT}/slots/renew", json={"slots": []}))
    assert nothing == {"version": 12, "lease": 60.0, "late": [], "lost": []}
    late = await said(client.post(f"{AT}/slots/renew", json={"slots": held[1:2]}))
    assert late == {"version": 12, "lease": 60.0, "late": [held[1]["id"]], "lost": []}
    now = await said(client.get(f"{AT}/versions"))
    assert (now["version"], now["outstanding"], now["slots"]) == (12, {"2": 3}, 3)


async def test_what_is_parked_over_http_goes_on(client: httpx.AsyncClient) -> None:
    (slot,) = await slots(client, 1, "a")
    parted = {**item("a", "u0", None), "versions": [[3, 10]]}
    body = {"fence": slot["fence"], "items": [parted]}
    park = f"{AT}/slots/{slot['id']}/park"
    assert await said(client.post(park, json=body)) == {"parked": 1}
    assert await said(client.post(park, json=body)) == {"parked": 1}, "a repeat"
    further = {"fence": slot["fence"], "items": [{**parted, "segment": 1}]}
    assert (await client.post(park, json=further)).status_code == 410
    (other,) = await slots(client, 1)
    assert other["partial"] == [{**parted, "status": "partial", "segment": 0}]
    gone = await client.post(f"{AT}/items", json={"items": [under(slot, "a", 0)]})
    assert (gone.status_code, gone.json()["outcomes"]) == (410, ["lost"])
    gone = await client.post("/buffer/write", json=under(slot, "a", 0))
    assert gone.status_code == 410
    end = f"{AT}/slots/{other['id']}"
    assert await said(client.delete(end, params={"fence": other["fence"]})) == {"ended": True}
    assert (await client.delete(end, params={"fence": other["fence"]})).status_code == 410


async def test_a_generator_waits_for_its_slot(client: httpx.AsyncClient) -> None:
    await slots(client, 4)
    waiting = asyncio.create_task(slots(client, 1, wait=20))
    while not (await said(client.get(f"{AT}/versions")))["waiting"]:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await said(client.put(f"{AT}/policy", json={**POLICY, "groups_per_version": 3}))
    assert len(await waiting) == 1


async def test_slimes_reader_gets_what_the_policy_allows(client: httpx.AsyncClient) -> None:
    (slow,) = await slots(client, 1, "slow")
    await publish(client, 12)
    for name in ("a", "b"):
        for n in range(2):
            await said(client.post("/buffer/write", json=item(name, f"{name}{n}", n)))
    empty = await said(client.post("/get_rollout_data", json={"batch_size": 4}))
    assert (empty["success"], empty["data"]["data"]) == (False, [])
    found = await said(client.post("/get_rollout_data", json={}))
    assert found["data"]["meta_info"]["ages"] == [0]
    assert found["data"]["meta_info"]["version"] == 12
    for n in range(2):
        await said(client.post("/buffer/write", json=under(slow, "slow", n)))
    found = await said(client.post("/get_rollout_data", json={}))
    assert found["data"]["meta_info"]["ages"] == [2]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "reason"),
    [
        ("POST", "/versions", {"version": 9, "owner": "other"}, 410, '"lead": true'),
        ("POST", "/versions", {"version": 1.5, "owner": "trainer-1"}, 422, "version"),
        ("POST", "/versions", {"version": 11, "saved": 12, "owner": "trainer-1"}, 400, "saved 12"),
        ("PUT", "/policy", {**POLICY, "depth": 3}, 422, "depth 3 is more than max_age 2"),
        ("PUT", "/policy", {**POLICY, "groups_per_version": 10**9}, 400, "max_buffer_size"),
        ("POST", "/take", {"groups": 3}, 400, "2 groups are trained on under one version"),
        ("POST", "/slots", {"n": 0, "owner": "g"}, 422, "n"),
        ("POST", "/items", {"items": [item("a", "u", 0, version_end=11)]}, 400, "published"),
        ("POST", "/items", {"items": [item("a", "u", 0, versions=[[1]])]}, 400, "pair"),
        ("POST", f"/slots/{'0' * 32}.1/park", {"fence": "1", "items": [{}] * 10_001}, 413, "10000"),
    ],
)
async def test_what_cannot_be_is_refused_with_a_sentence(
    client: httpx.AsyncClient, method: str, path: str, body: Any, status: int, reason: str
) -> None:
    answer = await client.request(method, AT + path, json=body)
    assert answer.status_code == status
    assert reason in answer.json()["message"]


async def test_a_slime_read_that_never_could_be_filled_is_refused(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/get_rollout_data", json={"batch_size": 6})
    assert answer.status_code == 400
    assert "groups_per_version" in answer.json()["message"]


async def test_a_task_without_a_policy_says_so(redis: ground.Client) -> None:
    async with served(redis) as client:
        await said(client.put(AT, json={"group_size": 2}))
        assert (await client.get(f"{AT}/policy")).status_code == 404
        answer = await client.post(f"{AT}/slots", json={"owner": "g"})
        assert answer.status_code == 404
        assert "PUT /v1/tasks/math/policy" in answer.json()["message"]


async def test_an_ask_that_gets_no_slot_is_given_a_reason(redis: ground.Client) -> None:
    async with served(redis) as client:
        await said(client.put(AT, json={"group_size": 2}))
        await said(client.put(f"{AT}/policy", json=POLICY))
        none = await said(client.post(f"{AT}/slots", json={"owner": "g"}))
        assert (none["slots"], none["why"]) == ([], "no version was published yet")
        await publish(client, 3)
        await slots(client, 4)
        none = await said(client.post(f"{AT}/slots", json={"owner": "g"}))
        assert none["why"] == "all groups that may be under way at version 3 are"


async def test_an_item_under_the_slot_of_another_instance_is_refused_as_such(
    client: httpx.AsyncClient,
) -> None:
    (slot,) = await slots(client, 1, "a")
    wrong = under(slot, "b", 0)
    answer = await client.post(f"{AT}/items", json={"items": [wrong, item("c", "c0", 0)]})
    assert (answer.status_code, answer.json()["outcomes"]) == (400, ["foreign", "stored"])
    answer = await client.post("/buffer/write", json=wrong)
    assert answer.status_code == 400
    assert "another instance" in answer.json()["message"]
    body = {"fence": slot["fence"], "items": [wrong]}
    answer = await client.post(f"{AT}/slots/{slot['id']}/park", json=body)
    assert answer.status_code == 400
    assert "another instance" in answer.json()["message"]


async def test_an_ask_that_is_repeated_by_its_name_gets_the_same_slots(
    client: httpx.AsyncClient,
) -> None:
    body = {"owner": "g", "n": 2, "ask": "0" * 32}
    first = await said(client.post(f"{AT}/slots", json=body))
    assert await said(client.post(f"{AT}/slots", json=body)) == first
    assert (await said(client.get(f"{AT}/versions")))["slots"] == 2


@pytest.fixture
async def server(real_redis: object, running: ServerProcess) -> AsyncIterator[httpx.AsyncClient]:
    """A server with sockets; one group may be under way at a version, and it is."""
    async with httpx.AsyncClient(base_url=running.url, headers=JSON, timeout=100) as client:
        await said(client.put(AT, json={"group_size": 2}))
        policy = {"groups_per_version": 1, "max_age": 0}
        await said(client.put(f"{AT}/policy", json=policy))
        await publish(client, 10)
        yield client


async def in_line(client: httpx.AsyncClient, n: int) -> None:
    async with asyncio.timeout(100):
        while (await said(client.get(f"{AT}/versions")))["waiting"] != n:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_ask_whose_client_went_away_is_no_longer_in_line(
    server: httpx.AsyncClient,
) -> None:
    (held,) = await slots(server, 1)
    asks = [asyncio.create_task(slots(server, 1, wait=60)) for _ in range(3)]
    await in_line(server, 3)
    for ask in asks:
        ask.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    await in_line(server, 0)
    end = f"{AT}/slots/{held['id']}"
    await said(server.delete(end, params={"fence": held["fence"], "back": True}))
    assert len(await slots(server, 1)) == 1, "nobody has it"


async def test_a_repeat_of_a_named_ask_keeps_its_place_in_the_line(
    server: httpx.AsyncClient,
) -> None:
    (held,) = await slots(server, 1)
    body = {"owner": "g", "wait": 60, "ask": "a" * 32}
    first = asyncio.create_task(server.post(f"{AT}/slots", json=body))
    await in_line(server, 1)
    second = asyncio.create_task(slots(server, 1, wait=60))
    await in_line(server, 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = asyncio.create_task(server.post(f"{AT}/slots", json=body))
    end = f"{AT}/slots/{held['id']}"
    await said(server.delete(end, params={"fence": held["fence"], "back": True}))
    (granted,) = (await said(again))["slots"]
    assert granted["id"].startswith("a" * 32)
    assert not second.done()
    end = f"{AT}/slots/{granted['id']}"
    await said(server.delete(end, params={"fence": granted["fence"], "back": True}))
    assert len(await second) == 1


async def test_a_whole_number_may_be_written_as_json_has_it(client: httpx.AsyncClient) -> None:
    assert (await publish(client, 11.0, saved=10.0))["version"] == 11  # type: ignore[arg-type]
    wanted = [{"instance_id": 7.0, "round": 2.0}]
    body = {"n": 1.0, "owner": "g", "instances": wanted}
    (slot,) = (await said(client.post(f"{AT}/slots", json=body)))["slots"]
    assert (slot["instance_id"], slot["round"]) == (7, 2)
    items = [under(slot, "7", n, round_number=2.0) for n in range(2)]
    await said(client.post(f"{AT}/items", json={"items": items}))
    take = {"groups": 1.0, "max_bytes": 1e6}
    assert len((await said(client.post(f"{AT}/take", json=take)))["groups"]) == 1


async def test_the_document_says_what_a_park_takes(client: httpx.AsyncClient) -> None:
    document = await said(client.get("/openapi.json"))
    park = document["paths"]["/v1/tasks/{task}/slots/{slot}/park"]["post"]
    (body,) = park["requestBody"]["content"].values()
    assert body["schema"] == {"$ref": "#/components/schemas/Parked"}
    assert document["components"]["schemas"]["Parked"]["required"] == ["fence", "items"]
    groups = document["components"]["schemas"]["Take"]["properties"]["groups"]
    assert groups["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 4096}
