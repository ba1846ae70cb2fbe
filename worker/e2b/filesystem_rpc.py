"""envd's service of the file system: what lies where, folders, renames, watching."""

import asyncio
import json
import secrets
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ground.http.held import Held
from jail.sessions import Change, Entry
from worker.e2b.boxes import Box, lives, moment
from worker.e2b.problems import EXPECTED, BoxGone, Problem, problem_of
from worker.e2b.wire import Json, body, number, one_frame, streamed

_KINDS = {"file": "FILE_TYPE_FILE", "folder": "FILE_TYPE_DIRECTORY", "link": "FILE_TYPE_SYMLINK"}
_EVENTS = {
    "create": "EVENT_TYPE_CREATE", "write": "EVENT_TYPE_WRITE", "remove": "EVENT_TYPE_REMOVE",
    "rename": "EVENT_TYPE_RENAME", "chmod": "EVENT_TYPE_CHMOD",
}  # fmt: skip
_PING, _MOST_EVENTS, _MOST_WATCHERS = 50.0, 4096, 16
_EVENT = 256  # bytes of one, besides its name


def entry(found: Entry) -> Json:
    mode = stat.S_IMODE(found.mode)
    about: Json = {
        "name": _text(found.name), "path": _text(found.path),
        "type": _KINDS.get(found.kind, "FILE_TYPE_UNSPECIFIED"), "size": str(found.size),
        "mode": mode, "owner": found.user, "group": found.group,
        "permissions": stat.filemode(mode)[1:],
        "modifiedTime": moment(found.modified),
    }  # fmt: skip
    return about | ({"symlinkTarget": _text(found.target)} if found.target else {})


def _too_many(_: str) -> Problem:
    most = f"the changes that wait for the clients of all watchers are above {_HELD.most:,} bytes"
    return Problem("resource_exhausted", most)


_HELD = Held(64 << 20, _too_many)


@dataclass
class _Watcher:
    """A watcher keeps what has changed since its client's last look, for the client to fetch."""

    task: "asyncio.Task[None]" = field(init=False)
    events: list[Json] = field(default_factory=list)
    problem: Problem | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    take: Callable[[int], None] | None = None  # of `_HELD`, while it watches
    held: int = 0  # bytes

    def add(self, event: Json) -> None:
        """Keep an event until the client fetches it. Raises `Problem` if nobody fetches them. A log
        that grows says the same again and again, which is one event."""
        if self.events[-1:] == [event]:
            return
        self.events.append(event)
        if len(self.events) > _MOST_EVENTS:
            most = f"more than {_MOST_EVENTS} changes wait to be fetched"
            raise Problem("resource_exhausted", most)
        self._hold(_EVENT + len(event["name"]))

    def fetch(self) -> list[Json]:
        found, self.events = self.events, []
        self._hold(-self.held)
        return found

    def _hold(self, more: int) -> None:
        self.held += more
        if self.take:
            self.take(more)


class Filesystem:
    """The service. Watchers live in this process: a client's calls reach it on one connection."""

    def __init__(self) -> None:
        self._watchers: dict[tuple[str, str], _Watcher] = {}
        self.calls = {
            "Stat": self.stat, "ListDir": self.list, "MakeDir": self.make, "Move": self.move,
            "Remove": self.remove, "WatchDir": self.watch, "CreateWatcher": self.create_watcher,
            "GetWatcherEvents": self.events, "RemoveWatcher": self.remove_watcher,
        }  # fmt: skip

    async def stat(self, request: Request, box: Box, user: str) -> Response:
        path = _path(await body(request))
        return JSONResponse({"entry": entry(await box.session.stat(path, user=user))})

    async def list(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        depth = number(asked.get("depth") or 1, "depth")
        found = await box.session.list(_path(asked), depth=depth, user=user)
        # Beside the loop, and an entry at a time: a program may have made very many.
        lines = await asyncio.to_thread(lambda: [json.dumps(entry(one)) for one in found])
        return Response(f'{{"entries":[{",".join(lines)}]}}', media_type="application/json")

    async def make(self, request: Request, box: Box, user: str) -> Response:
        path = _path(await body(request))
        if not await box.session.make_folder(path, user=user):
            raise Problem("already_exists", f"{path} exists")
        return JSONResponse({"entry": entry(await box.session.stat(path, user=user))})

    async def move(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        source, target = _path(asked, "source"), _path(asked, "destination")
        return JSONResponse({"entry": entry(await box.session.move(source, target, user=user))})

    async def remove(self, request: Request, box: Box, user: str) -> Response:
        with suppress(FileNotFoundError):
            await box.session.remove(_path(await body(request)), user=user)
        return JSONResponse({})

    async def watch(self, request: Request, box: Box, user: str) -> Response:
        asked = await one_frame(request)
        folder = await _folder(box, asked, user)

        async def changes() -> AsyncGenerator[Json, None]:
            found = box.session.watch(folder, recursive=bool(asked.get("recursive")), user=user)
            async with aclosing(found):
                async for change in found:
                    if change is None:
                        yield {"start": {}}
                    else:
                        yield {"filesystem": _event(change, folder)}

        return streamed(changes(), _PING)

    async def create_watcher(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        folder = await _folder(box, asked, user)
        if sum(name == box.id for name, _ in self._watchers) >= _MOST_WATCHERS:
            raise Problem("resource_exhausted", f"a sandbox has at most {_MOST_WATCHERS} watchers")
        watcher, name = _Watcher(), secrets.token_hex(8)

        async def follow() -> None:
            found = box.session.watch(folder, recursive=bool(asked.get("recursive")), user=user)
            try:
                with _HELD.some() as watcher.take:
                    async with aclosing(found):
                        async for change in found:
                            watcher.ready.set()
                            if change:
                                watcher.add(_event(change, folder))
            except Problem as problem:
                watcher.problem = problem
            except EXPECTED as problem:
                watcher.problem = problem_of(problem)
                if not await lives(box):
                    self.forget(box.id)
            finally:
                watcher.take = None

        watcher.task = asyncio.create_task(follow())
        watcher.task.add_done_callback(lambda _: watcher.ready.set())
        self._watchers[box.id, name] = watcher
        await watcher.ready.wait()
        if (box.id, name) not in self._watchers:
            raise BoxGone(box.id)
        return JSONResponse({"watcherId": name})

    async def events(self, request: Request, box: Box, user: str) -> Response:
        watcher = self._find(box, await body(request))
        if watcher.problem:
            raise watcher.problem
        return JSONResponse({"events": watcher.fetch()})

    async def remove_watcher(self, request: Request, box: Box, user: str) -> Response:
        asked = await body(request)
        watcher = self._find(box, asked)
        del self._watchers[box.id, str(asked.get("watcherId"))]
        watcher.task.cancel()
        return JSONResponse({})

    def _find(self, box: Box, asked: Json) -> _Watcher:
        name = str(asked.get("watcherId"))
        watcher = self._watchers.get((box.id, name))
        if watcher is None:
            raise Problem("not_found", f"there is no watcher {name!r}")
        return watcher

    def forget(self, box: str) -> None:
        """The sandbox is gone: nobody asks for its watchers."""
        for key in [key for key in self._watchers if key[0] == box]:
            self._watchers.pop(key).task.cancel()


def _text(name: str) -> str:
    """A name inside need not be UTF-8, and a name for clients must be."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


async def _folder(box: Box, asked: Json, user: str) -> str:
    """The absolute path of a folder that a client wants to watch. A wrong one is refused at
    once."""
    path = _path(asked)
    await box.session.list(path, user=user)
    return (await box.session.stat(path, user=user)).path


def _event(change: Change, folder: str) -> Json:
    """An event, whose name is relative to the watched folder."""
    name = change.path.removeprefix(folder.rstrip("/") + "/")
    return {"name": _text(name), "type": _EVENTS[change.kind]}


def _path(asked: Json, name: str = "path") -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found or "\0" in found:
        raise Problem("invalid_argument", f"{name} is {found!r}; it must be a path")
    return found
