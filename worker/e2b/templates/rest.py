"""REST of templates: a build is asked for, gets its files, is started, and is watched.

A build is known by the server that it was asked of, until that ends. What it has made is an image.
"""

import asyncio
import re
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ground.recent import Recent
from jail.images import ImageUnknown
from jail.images.store import BUILD
from worker.e2b.boxes import Boxes, images_of, moment, unknown
from worker.e2b.problems import EXPECTED, Problem, problem_of
from worker.e2b.templates.steps import Building, StepFailed
from worker.e2b.wire import Json, body, is_number

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}(:[A-Za-z0-9._-]{1,27})?")
_REMEMBERED, _AT_ONCE = 256, 2  # builds
_MOST_LOGS, _PAGE = 10_000, 100  # entries
_LONGEST_REASON = 4096  # characters
_MOST_LOGGED = 4 << 20  # characters of one build
_UPLOAD_TTL = 86400.0  # seconds
_UNTAGGED = "default"  # E2B's word for the tag of a template that was built without one
Outside = Callable[[Request], Awaitable[Response]]
Wrap = Callable[[Outside], Outside]


@dataclass
class Build:
    names: list[str]
    own: str  # its image's name, whatever the others come to name
    status: str = "waiting"
    entries: list[Json] = field(default_factory=list)
    reason: Json | None = None
    task: "asyncio.Task[None] | None" = None
    at: str = ""  # the step that is under way
    removed: bool = False
    room: int = _MOST_LOGGED

    def say(self, message: str, level: str = "info") -> None:
        self.room -= len(message)
        if len(self.entries) < _MOST_LOGS and self.room > 0:
            entry = {"timestamp": moment(time.time()), "level": level, "message": message}
            self.entries.append(entry | self._step())

    def fail(self, message: str) -> None:
        message = message[:_LONGEST_REASON]  # it may quote a program
        self.say(message, "error")
        self.reason = {"message": message, "logEntries": []} | self._step()
        self.status = "error"

    def _step(self) -> Json:
        return {"step": self.at} if self.at else {}


class Templates:
    """The templates that are built on this machine."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._builds: OrderedDict[str, Build] = OrderedDict()
        self._uploads: Recent[Path] = Recent(_REMEMBERED)  # by the address that was given out
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def routes(self, keyed: Wrap, unkeyed: Wrap) -> list[Route]:
        one = "/templates/{template:path}"
        return [
            Route("/v3/templates", keyed(self.ask), methods=["POST"]),
            Route(f"{one}/tags", keyed(self.tags), methods=["GET"]),
            Route(f"{one}/files/{{digest}}", keyed(self.file), methods=["GET"]),
            Route("/templates/upload/{ticket}", unkeyed(self.upload), methods=["PUT"]),
            Route(f"/v2{one}/builds/{{build}}", keyed(self.start), methods=["POST"]),
            Route(f"{one}/builds/{{build}}/status", keyed(self.status), methods=["GET"]),
            Route(one, keyed(self.remove), methods=["DELETE"]),
        ]

    async def ask(self, request: Request) -> Response:
        asked = await body(request)
        name, tags = str(asked.get("name") or asked.get("alias") or ""), asked.get("tags") or []
        if not isinstance(tags, list):
            raise Problem("invalid_argument", "tags must be a list")
        names = [name, *(f"{name.partition(':')[0]}:{tag}" for tag in tags)]
        if bad := [each for each in names if not _NAME.fullmatch(each) or each.startswith(BUILD)]:
            raise Problem("invalid_argument", f"{bad[0]!r:.150} is no name of a template")
        build = str(uuid.uuid4())
        self._builds[build] = Build(names, f"{name.partition(':')[0]}:{build}")
        while len(self._builds) > _REMEMBERED:
            _, old = self._builds.popitem(last=False)
            if old.task:
                old.task.cancel()
        said = {"templateID": name, "buildID": build, "public": False, "names": names,
                "tags": tags, "aliases": [name]}  # fmt: skip
        return JSONResponse(said, status_code=202)

    async def tags(self, request: Request) -> Response:
        """The tags of a template, and the build that each of them points at. An image that was not
        built has no tag."""
        template = request.path_params["template"].partition(":")[0]
        images = await asyncio.to_thread(images_of, self._boxes.sessions.images, template)
        builds = {image.content: image.build for image in images if image.build}
        said = [
            {"tag": image.name.removeprefix(template).removeprefix(":") or _UNTAGGED,
             "buildID": builds[image.content], "createdAt": moment(image.added)}
            for image in images
            if not image.build and image.content in builds
        ]  # fmt: skip
        return JSONResponse(said)

    def _folder(self) -> Path:
        folder = self._boxes.sessions.images.folder / "uploads"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    async def file(self, request: Request) -> Response:
        digest = request.path_params["digest"]
        if not _DIGEST.fullmatch(digest):
            raise Problem("invalid_argument", f"{digest!r:.100} is no digest of files")
        path = await asyncio.to_thread(self._swept) / digest
        ticket = secrets.token_hex(20)
        self._uploads.put(ticket, path)
        url = f"{request.url.scheme}://{request.url.netloc}/templates/upload/{ticket}"
        return JSONResponse({"present": path.is_file(), "url": url}, status_code=201)

    def _swept(self) -> Path:
        """The folder, without what lies there for a day: a build that needs it asks again."""
        folder = self._folder()
        for path in folder.iterdir():
            with suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _UPLOAD_TTL:
                    path.unlink()
        return folder

    async def upload(self, request: Request) -> Response:
        """A file is admitted by the address alone, which only a holder of the key was given."""
        path = self._uploads.pop(request.path_params["ticket"], None)
        if path is None:
            raise Problem("unauthenticated", "this address was not given out, or was used")
        most, taken = self._boxes.sessions.images.most, 0
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            with part.open("wb") as file:
                async for chunk in request.stream():
                    taken += len(chunk)
                    if taken > most:
                        raise Problem("resource_exhausted", f"more than {most:,} bytes", 413)
                    await asyncio.to_thread(file.write, chunk)
            part.rename(path)
        finally:
            part.unlink(missing_ok=True)
        return Response(status_code=200)

    def _of(self, request: Request) -> Build:
        found = self._builds.get(request.path_params["build"])
        if found is None or request.path_params["template"] not in found.names:
            raise Problem(
                "not_found",
                "this build was not found on this server. Ask the one where it began: set"
                " E2B_API_URL to the address of one server",
            )
        return found

    async def start(self, request: Request) -> Response:
        build, asked = self._of(request), await body(request)
        if build.task:
            raise Problem("already_exists", "this build was started before")
        steps = _steps(asked)
        build.status = "building"
        build.task = asyncio.create_task(self._build(build, asked, steps))
        return Response(status_code=202)

    async def remove(self, request: Request) -> Response:
        """A template that was built here, and its builds that wait or are under way. Images from
        elsewhere are the operator's."""
        name = request.path_params["template"]
        builds = {
            id: build
            for id, build in self._builds.items()
            if name in build.names and not build.removed
        }
        if not builds:
            raise unknown(name)
        under_way = []
        for id, build in builds.items():
            if build.task and not build.task.done():
                build.task.cancel()
                build.removed = True  # who waits for it may still ask how it ended
                under_way.append(build.task)
                continue
            build.names.remove(name)
            if not build.names:
                del self._builds[id]
        if under_way:
            await asyncio.wait(under_way)
        ended = [build.own for build in builds.values() if build.removed or not build.names]
        for image in (name, *ended):
            with suppress(ImageUnknown):
                await asyncio.to_thread(self._boxes.sessions.images.remove, image)
        return Response(status_code=204)

    async def _build(self, build: Build, asked: Json, steps: list[Json]) -> None:
        try:
            async with self._turns:
                building = await self._begin(asked, build)
                for number, step in enumerate(steps, 1):
                    build.at = str(number)
                    build.say(f"[{number}] {step.get('type')} {step.get('args')}"[:1000])
                    fresh = bool(asked.get("force") or step.get("force"))
                    await building.step(step, fresh, build.say)
                build.at = ""
                start, ready = (str(asked.get(key) or "") for key in ("startCmd", "readyCmd"))
                await building.finish([build.own, *build.names], start, ready)
                build.say("built")
                build.status = "ready"
        except StepFailed as failed:
            build.fail(f"step {build.at} failed: {failed}")
        except Problem as problem:
            build.fail(problem.message)
        except EXPECTED as problem:
            build.fail(problem_of(problem).message)
        except asyncio.CancelledError:
            build.fail("it was cancelled")
            raise
        except Exception as defect:
            build.fail(f"the server failed: {type(defect).__name__}")
            raise

    async def _begin(self, asked: Json, build: Build) -> Building:
        name = str(asked.get("fromImage") or asked.get("fromTemplate") or "")
        try:
            base = await asyncio.to_thread(self._boxes.sessions.images.find, name)
        except ImageUnknown:
            raise unknown(name) from None
        build.say(f"FROM {base.name}")
        network = self._boxes.network_for({})
        return Building(self._boxes.sessions, base, self._folder(), network, self._boxes.starting)

    async def status(self, request: Request) -> Response:
        build = self._of(request)
        text = request.query_params.get("logsOffset", "0")
        offset = int(text) if is_number(text) else 0
        said: dict[str, Any] = {
            "templateID": request.path_params["template"], "logs": [],
            "buildID": request.path_params["build"], "status": build.status,
            "logEntries": build.entries[offset : offset + _PAGE],
        }  # fmt: skip
        return JSONResponse(said | ({"reason": build.reason} if build.reason else {}))


def _steps(asked: Json) -> list[Json]:
    found = asked.get("steps") or []
    if not isinstance(found, list) or not all(map(_is_step, found)):
        raise Problem("invalid_argument", "steps must be a list of objects, their args lists")
    return found


def _is_step(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("args") or [], list)
