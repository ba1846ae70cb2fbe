"""E2B's REST: sandboxes are created, found, listed, prolonged, forked and ended."""

import base64
import os
import time
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from worker.sandbox.e2b.boxes import DEFAULT_TIMEOUT, Boxes, check_template, details, moment
from worker.sandbox.e2b.problems import EXPECTED, BoxGone, Problem, problem_of
from worker.sandbox.e2b.wire import Json, body
from worker.sandbox.sessions import SessionGone

_MOST_FORKS, _PAGE = 20, 100


class Rest:
    """The calls that need the API key. Each raises what `problems` has an answer for."""

    def __init__(self, boxes: Boxes, forget: Callable[[str], None]) -> None:
        self._boxes = boxes
        self._forget = forget
        self._cores = os.cpu_count() or 1

    async def create(self, request: Request) -> Response:
        key = request.headers.get("idempotency-key", "")
        box = await self._boxes.create(await body(request), key)
        return JSONResponse(box.answer(), status_code=201)

    async def look(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        return JSONResponse(details(await box.session.info(), self._cores))

    async def list(self, request: Request) -> Response:
        asked = request.query_params
        wanted = _metadata(asked.get("metadata", ""))
        states = ",".join(asked.getlist("state")).split(",") if "state" in asked else ["running"]
        found = [details(info, self._cores) async for info in self._boxes.living()]
        found = [one for one in found if wanted.items() <= one["metadata"].items()]
        if template := asked.get("template"):
            found = [one for one in found if one["templateID"] == template]
        if since := asked.get("startedAfter"):
            found = [one for one in found if one["startedAt"] > since]
        if "running" not in states:
            found = []
        found.sort(key=_order, reverse=asked.get("order", "desc") != "asc")
        page, token = _page(found, asked)
        return JSONResponse(page, headers={"x-next-token": token} if token else {})

    async def connect(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        wanted = self._boxes.ttl(asked.get("timeout") or DEFAULT_TIMEOUT)
        info = await box.session.info()
        # Connecting may prolong a sandbox; it shortens none.
        if info.ends < time.time() + wanted:
            await box.session.keep(ttl=wanted)
        return JSONResponse(box.answer())

    async def timeout(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        await box.session.keep(ttl=self._boxes.ttl(asked.get("timeout")))
        return Response(status_code=204)

    async def kill(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        self._forget(box.id)
        if not await self._boxes.sessions.end(box.id):
            raise BoxGone(box.id)
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        box = await self._boxes.find(request.path_params["id"])
        asked = await body(request)
        count = asked.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= _MOST_FORKS:
            raise Problem("invalid_argument", f"count is {count!r}; it is from 1 to {_MOST_FORKS}")
        made: list[Json] = []
        for _ in range(count):
            try:
                child = await self._boxes.fork(box, asked.get("timeout"))
                made.append({"sandbox": child.answer()})
            except EXPECTED as refused:
                if not made or isinstance(refused, SessionGone):
                    raise
                problem = problem_of(refused)
                made.append({"error": {"code": problem.status, "message": problem.message}})
        return JSONResponse(made, status_code=201)

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
        name = request.path_params["alias"]
        check_template(name)
        return JSONResponse({"templateID": name, "public": False})

    async def not_offered(self, request: Request) -> Response:
        what = request.url.path.rpartition("/")[2]
        raise Problem("unimplemented", f"{what} is not offered: docs/guide/e2b.md says what is")


def _order(one: Mapping[str, str]) -> tuple[str, str]:
    return one["startedAt"], one["sandboxID"]


def _page(found: list[Json], asked: Mapping[str, str]) -> tuple[list[Json], str]:
    """One page, and the token of the next: where it begins."""
    try:
        begin = int(base64.urlsafe_b64decode(asked.get("nextToken", "") or b"MA=="))
        limit = max(1, min(_PAGE, int(asked.get("limit", _PAGE))))
    except ValueError:
        raise Problem("invalid_argument", "limit or nextToken is not what a list gave") from None
    more = len(found) > begin + limit
    token = base64.urlsafe_b64encode(str(begin + limit).encode()).decode() if more else ""
    return found[begin : begin + limit], token


def _metadata(text: str) -> dict[str, str]:
    """The SDK encodes keys and values twice more than a query is."""
    return {unquote(key): unquote(value) for key, value in parse_qsl(text)}
