"""What a sandbox changes, and its client has not fetched, is bounded; and watchers end with it."""

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request

from jail.sessions import Change, Entry
from worker.e2b import filesystem_rpc
from worker.e2b.boxes import Box
from worker.e2b.filesystem_rpc import Filesystem
from worker.e2b.problems import BoxGone, Problem
from worker.e2b.wire import TAKE


class Session:
    """Its one folder changes as often as it is told."""

    name = "one"

    def __init__(self) -> None:
        self.changes: asyncio.Queue[int] = asyncio.Queue()
        self.watched = asyncio.Event()

    async def list(self, path: str, *, user: str = "") -> list[Any]:
        return []

    async def stat(self, path: str, *, user: str = "") -> Entry:
        return Entry(path, "folder", 0, 0o755, "", "", 0.0)

    async def watch(self, path: str, *, recursive: bool = False, user: str = ""):
        await self.watched.wait()
        yield None
        while True:
            for number in range(await self.changes.get()):
                yield Change("create", "/tmp/" + f"{number:x>744}")
            self.changes.task_done()


async def ask(call: Any, box: Box, **said: Any) -> dict[str, Any]:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(said).encode(), "more_body": False}

    answer = await call(Request({"type": "http", TAKE: abs}, receive), box, "")
    return dict(json.loads(answer.body))


async def test_changes_that_nobody_fetches_are_bounded(monkeypatch):
    monkeypatch.setattr(filesystem_rpc._HELD, "most", 10_000)
    session: Any = Session()
    session.watched.set()
    service, box = Filesystem(), Box(session, "base", "token")
    watcher = (await ask(service.create_watcher, box, path="/tmp"))["watcherId"]
    for _ in range(3):  # what is fetched counts no more
        session.changes.put_nowait(9)
        await session.changes.join()
        assert filesystem_rpc._HELD.bytes == 9_000
        assert len((await ask(service.events, box, watcherId=watcher))["events"]) == 9
        assert filesystem_rpc._HELD.bytes == 0
    session.changes.put_nowait(11)
    await asyncio.wait([service._watchers["one", watcher].task], timeout=100)
    with pytest.raises(Problem, match="above 10,000 bytes"):
        await ask(service.events, box, watcherId=watcher)
    assert filesystem_rpc._HELD.bytes == 0
    service.forget("one")


async def test_a_log_that_grows_is_one_change_until_it_is_fetched():
    session: Any = Session()
    session.watched.set()
    service, box = Filesystem(), Box(session, "base", "token")
    watcher = (await ask(service.create_watcher, box, path="/tmp"))["watcherId"]
    for _ in range(2):
        for _ in range(2 * filesystem_rpc._MOST_EVENTS):
            session.changes.put_nowait(1)
        await session.changes.join()
        assert len((await ask(service.events, box, watcherId=watcher))["events"]) == 1
    service.forget("one")


async def test_a_watcher_whose_sandbox_ends_before_it_watches_is_answered():
    session: Any = Session()
    service, box = Filesystem(), Box(session, "base", "token")
    creating = asyncio.create_task(ask(service.create_watcher, box, path="/tmp"))
    while not service._watchers:  # noqa: ASYNC110
        await asyncio.sleep(0)
    service.forget("one")
    async with asyncio.timeout(100):
        with pytest.raises(BoxGone):
            await creating
