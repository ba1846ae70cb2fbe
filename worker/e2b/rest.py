"""E2B's REST: sandboxes are created, found, listed, prolonged, forked and ended."""

import base64
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from jail.sessions import SessionGone, TooManySessions
from worker.e2b.boxes import (
    DEFAULT_TIMEOUT,
    Box,
    Boxes,
    details,
    is_name,
    moment,
    name_by,
)
from worker.e2b.fleet.fleet import Fleet
from worker.e2b.problems import EXPECTED, BoxGone, Problem, problem_of
from worker.e2b.signatures import Signatures
from worker.e2b.wire import Json, body, content, parsed, was_forwarded, while_heard

_MOST_FORKS, _PAGE = 20, 100


class Rest:
    """The calls that need the API key. Each raises what `problems` has an answer for."""

    def __init__(
        self, boxes: Boxes, forget: Callable[[str], None], fleet: Fleet | None, api_key: str,
        signatures: Signatures,
    ) -> None:  # fmt: skip
        self._boxes, self._fleet, self._signatures = boxes, fleet, signatures
        self._forget, self._key = forget, api_key
        self._cores = os.cpu_count() or 1

    async def create(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key", "")
        raw = await content(request)
        wanted = parsed(raw or b"{}")

        async def here() -> Response:
            box = await self._boxes.create(wanted, key)
            return JSONResponse(box.answer(), status_code=201)

        async def work() -> Response:
            if self._fleet is None:
                return await here()
            if not was_forwarded(request):
                image = self._boxes.image_of(wanted)
                return await self._fleet.create(request, raw, name_by(key), image, here)
            try:
                return await here()
            except TooManySessions as full:  # another machine may have room
                raise Problem("resource_exhausted", str(full)) from None

        # One that is repeated by its key may be waited for by another request too.
        return await work() if key else await while_heard(request, work())

    async def look(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        return JSONResponse(details(await box.session.info(), self._cores))

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        # The SDK encodes twice more than a query is. A key whose text is empty is a condition too.
        pairs = parse_qsl(asked.get("metadata", ""), keep_blank_values=True)
        wanted = {unquote(key): unquote(value) for key, value in pairs}
        states = ",".join(asked.getlist("state")).split(",") if "state" in asked else ["running"]
        found = [details(info, self._cores) async for info in self._boxes.living()]
        if self._fleet and was_forwarded(request):
            return JSONResponse(found)
        if self._fleet:
            found += await self._fleet.listings(self._key)
        found = [one for one in found if wanted.items() <= one["metadata"].items()]
        if template := asked.get("template"):
            found = [one for one in found if one["templateID"] == template]
        if since := asked.get("startedAfter"):
            after = _moment_in(since)
            found = [one for one in found if datetime.fromisoformat(one["startedAt"]) > after]
        if "running" not in states:
            found = []
        page, token = _page(found, asked)
        return JSONResponse(page, headers={"x-next-token": token} if token else {})

    async def connect(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        wanted = self._boxes.ttl(asked.get("timeout") or DEFAULT_TIMEOUT)
        info = await box.session.info()
        # Connecting may prolong a sandbox; it shortens none.
        if info.ends < time.time() + wanted:
            await self._boxes.keep(box, wanted)
        return JSONResponse(box.answer())

    async def timeout(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        await self._boxes.keep(box, self._boxes.ttl(asked.get("timeout")))
        return Response(status_code=204)

    async def network(self, request: Request) -> Response:
        """Set a sandbox's network, in place of all that was set before."""
        box = await self._boxes.find(request.path_params["id"])
        await box.session.connect(self._boxes.network_for(await body(request)))
        return Response(status_code=204)

    async def kill(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        self._forget(box.id)
        await self._boxes.end(box.id)
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        count = asked.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= _MOST_FORKS:
            raise Problem("invalid_argument", f"count is {count!r}; it is from 1 to {_MOST_FORKS}")
        if self._fleet:
            self._fleet.require_redis()
        work = self._forked(box, count, asked.get("timeout"))
        return JSONResponse(await while_heard(request, work), status_code=201)

    async def _forked(self, parent: Box, count: int, timeout: Any) -> Sequence[Json]:  # noqa: ASYNC109
        """Fork a sandbox; none is left if the client cannot learn of them."""
        made: list[Json] = []
        children: list[str] = []
        try:
            for _ in range(count):
                try:
                    child = await self._boxes.fork(parent, timeout)
                except EXPECTED as refused:
                    if not children or isinstance(refused, SessionGone):
                        raise
                    problem = problem_of(refused)
                    made.append({"error": {"code": problem.status, "message": problem.message}})
                else:
                    children.append(child.id)
                    made.append({"sandbox": child.answer()})
        except BaseException:
            for name in children:
                with suppress(BoxGone, *EXPECTED):  # the others are ended all the same
                    await self._boxes.end(name)
            raise
        return made

    async def signed(self, request: Request) -> Response:
        """Another server asks whether a token of this machine signs the address of a file."""
        if name := await self._signatures.signer(request):
            return JSONResponse({"sandbox": name})
        raise Problem("not_found", "no sandbox of this machine has signed it")

    async def metrics(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        info, used, now = await box.session.info(), await box.session.usage(), time.time()
        return JSONResponse([{
            "timestamp": moment(now),
            "timestampUnix": int(now),
            "cpuCount": self._cores, "cpuUsedPct": 0.0,
            "memUsed": used.memory, "memTotal": info.memory_mb << 20, "memCache": 0,
            "diskUsed": used.disk, "diskTotal": info.disk_mb << 20,
        }])  # fmt: skip

    async def alias(self, request: Request) -> Response:
        """Whether a template of this name exists, under any tag."""
        name = request.path_params["alias"]
        if not (self._fleet and await self._fleet.knows(name)):
            await self._boxes.check_known(name)
        return JSONResponse({"templateID": name, "public": False})

    async def not_offered(self, request: Request) -> Response:
        what = request.url.path.rpartition("/")[2]
        raise Problem("unimplemented", f"{what} is not offered: docs/guide/e2b.md says what is")


def _moment_in(text: str) -> datetime:
    """A moment as a client writes it, who may be in another time zone. Raises `Problem`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Problem("invalid_argument", f"startedAfter is {text!r:.100}; it is a date") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _order(one: Mapping[str, str]) -> tuple[str, str]:
    return one["startedAt"], one["sandboxID"]


def _page(found: list[Json], asked: Mapping[str, str]) -> tuple[list[Json], str]:
    """A page of the list, and the token of the next: this one's last sandbox. So those that end
    meanwhile, as their client ends page after page, move no other past a page."""
    newest_first = asked.get("order", "desc") != "asc"
    found = sorted(found, key=_order, reverse=newest_first)
    try:
        limit = max(1, min(_PAGE, int(asked.get("limit", _PAGE))))
        if token := asked.get("nextToken"):
            began, _, name = base64.urlsafe_b64decode(token).decode().partition(" ")
            if not is_name(name):
                raise ValueError(name)
            last = began, name
            found = [
                one for one in found if _order(one) != last and (_order(one) < last) == newest_first
            ]
    except ValueError:
        raise Problem("invalid_argument", "limit or nextToken is not what a list gave") from None
    page, rest = found[:limit], found[limit:]
    token = base64.urlsafe_b64encode(" ".join(_order(page[-1])).encode()).decode() if rest else ""
    return page, token
