"""The HTTP server is killed while generators ask for slots, again and again."""

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

import ground
from tests.buffer.conftest import item
from tests.buffer.serving import ServerProcess
from tests.harness.servers import PrivateRedis

ASKERS, EACH, G = 4, 3, 4


class Asker:
    """Makes the groups of its prompts, and those that others left behind; never gives up."""

    def __init__(self, url: str, name: str, over: threading.Event) -> None:
        self._at, self._name, self._over = f"{url}/v1/tasks/math", name, over
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        wishes = [f"{self._name}-{n}" for n in range(EACH)]
        while not self._over.is_set():
            named = [{"instance_id": wishes[0], "round": 0}] if wishes else []
            body = {"owner": self._name, "wait": 2, "instances": named}
            for slot in self._call("POST", "/slots", json=body).get("slots", []):
                if slot["instance_id"] is None:
                    fence = {"fence": slot["fence"]}
                    self._call("DELETE", f"/slots/{slot['id']}", params=fence)
                else:
                    self._call("POST", "/items", json={"items": self._items(slot)})
                if wishes and slot["instance_id"] in (None, wishes[0]):
                    wishes.pop(0)  # made, or begun by an ask whose answer was lost

    def _items(self, slot: dict[str, Any]) -> list[dict[str, Any]]:
        more = {name: slot[name] for name in ("fence",)} | {"slot": slot["id"]}
        name = slot["instance_id"]
        return [
            item(name, f"{slot['id']}-{n}", n, round_number=0, **more)
            for n in range(slot["missing"])
        ]

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        while not self._over.is_set():
            try:
                answer = httpx.request(method, self._at + path, timeout=120, **options)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            if answer.status_code < 500:
                return dict(answer.json())
            time.sleep(0.05)
        return {}


@pytest.mark.timeout(1000)
def test_a_server_that_is_killed_amid_admissions_loses_no_slot_for_good(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> None:
    over, seen, version = threading.Event(), Counter[str](), 1
    with ServerProcess(shared_server.url, tmp_path) as server:
        at = f"{server.url}/v1/tasks/math"

        def said(method: str, path: str, **body: Any) -> httpx.Response:
            answer = httpx.request(method, at + path, json=body or None, timeout=120)
            assert answer.status_code in (200, 204), answer.text
            return answer

        said("PUT", "", group_size=2)
        said("PUT", "/policy", groups_per_version=G, max_age=1, slot_lease=2.0)
        said("POST", "/versions", version=1, owner="trainer")
        askers = [Asker(server.url, f"asker{n}", over) for n in range(ASKERS)]
        end = time.monotonic() + 800
        while len(seen) < ASKERS * EACH:
            assert time.monotonic() < end, (seen, said("GET", "/versions").json())
            answer = said("POST", "/take", groups=G, wait=5)
            if answer.status_code == 204:
                continue
            batch = answer.json()
            seen.update(group["instance_id"] for group in batch["groups"])
            assert max(batch["meta_info"]["ages"]) <= 1
            said("POST", f"/batches/{batch['receipt']}/ack")
            if said("GET", "/versions").json()["taken"] == G:
                version += 1
                if version in (2, 3):
                    server.kill()
                    server.start()
                said("POST", "/versions", version=version, owner="trainer")
        now = said("GET", "/versions").json()
        over.set()
        for asker in askers:
            asker.thread.join(150)
    assert set(seen.values()) == {1}, "each group is trained on once"
    assert sum(now["outstanding"].values()) <= 2 * G
