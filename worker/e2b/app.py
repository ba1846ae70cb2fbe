"""The application: REST for the key's holders, envd and the interpreter for a sandbox's token."""

import base64
import binascii
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ground.http.guard import AsgiApp, OwnNames, Receive, Scope, Send, is_json
from jail.sessions import SessionGone
from worker.e2b import http_files, process_rpc
from worker.e2b.boxes import Box, Boxes, box_of, is_name
from worker.e2b.contexts import Interpreter
from worker.e2b.filesystem_rpc import Filesystem
from worker.e2b.fleet.fleet import Fleet
from worker.e2b.problems import EXPECTED, BoxGone, Problem, problem_of
from worker.e2b.rest import Rest
from worker.e2b.signatures import Signatures
from worker.e2b.templates.rest import Templates
from worker.e2b.wire import (
    FORWARDED,
    HELD,
    TAKE,
    is_number,
    refusal,
    retry,
    unless_gone,
    was_forwarded,
)

log = logging.getLogger(__name__)

Inside = Callable[[Request, Box, str], Awaitable[Response]]
Outside = Callable[[Request], Awaitable[Response]]
_TOKENS = ("x-access-token", "e2b-traffic-access-token")
_BOX_LABEL = re.compile(rb"^\d+-i[0-9a-f]{20}\.")


def app(boxes: Boxes, api_key: str, host: str, fleet: Fleet | None = None) -> AsgiApp:
    """All routes. REST and envd collide in no path, so one address serves as both."""
    filesystem, interpreter = Filesystem(), Interpreter()

    def forget(name: str) -> None:
        """The sandbox is gone."""
        for room in (boxes, filesystem, interpreter):
            room.forget(name)

    signatures = Signatures(boxes, fleet)
    rest = Rest(boxes, forget, fleet, api_key, signatures)
    inside = _Inside(boxes, forget, fleet, signatures)
    keyed = _Keyed(boxes, api_key, fleet).of
    routes = [
        *_of_rest(rest, keyed),
        *Templates(boxes).routes(keyed, _unkeyed),
        *_of_envd(inside, filesystem),
        *_of_the_interpreter(inside, interpreter),
    ]
    return _Door(Starlette(routes=routes), OwnNames(host), fleet)


def _of_rest(rest: Rest, keyed: Callable[[Outside], Outside]) -> list[Route]:
    def route(path: str, handler: Outside, method: str) -> list[Route]:
        return [Route(prefix + path, keyed(handler), methods=[method]) for prefix in ("", "/v2")]

    async def signed(request: Request) -> Response:
        if not was_forwarded(request):
            raise Problem("not_found", "Not Found")
        return await rest.signed(request)

    one = "/sandboxes/{id}"
    return [
        *route("/sandboxes", rest.create, "POST"),
        *route("/sandboxes", rest.list, "GET"),
        *route(one, rest.look, "GET"),
        *route(one, rest.kill, "DELETE"),
        *route(f"{one}/connect", rest.connect, "POST"),
        *route(f"{one}/resume", rest.connect, "POST"),
        *route(f"{one}/timeout", rest.timeout, "POST"),
        *route(f"{one}/fork", rest.fork, "POST"),
        *route(f"{one}/metrics", rest.metrics, "GET"),
        *route(f"{one}/pause", rest.not_offered, "POST"),
        *route(f"{one}/snapshots", rest.not_offered, "POST"),
        *route(f"{one}/network", rest.network, "PUT"),
        *route("/templates/aliases/{alias:path}", rest.alias, "GET"),
        Route("/signed", _unkeyed(signed), methods=["GET", "POST"]),
    ]


def _of_envd(inside: "_Inside", filesystem: Filesystem) -> list[Route]:
    calls: Mapping[str, Mapping[str, Inside]] = {
        "process.Process": process_rpc.CALLS,
        "filesystem.Filesystem": filesystem.calls,
    }
    rpc = [
        Route(f"/{service}/{name}", inside.of(handler), methods=["POST"])
        for service, handlers in calls.items()
        for name, handler in handlers.items()
    ]
    return [
        Route("/health", inside.health, methods=["GET"]),
        Route("/files", inside.of(http_files.download, signed=True), methods=["GET"]),
        Route("/files", inside.of(http_files.upload, signed=True), methods=["POST"]),
        *rpc,
    ]


def _of_the_interpreter(inside: "_Inside", interpreter: Interpreter) -> list[Route]:
    return [
        Route("/execute", inside.of(interpreter.execute), methods=["POST"]),
        Route("/contexts", inside.of(interpreter.create), methods=["POST"]),
        Route("/contexts", inside.of(interpreter.list), methods=["GET"]),
        Route("/contexts/{context}", inside.of(interpreter.remove), methods=["DELETE"]),
        Route("/contexts/{context}/restart", inside.of(interpreter.restart), methods=["POST"]),
    ]


class _Door:
    """The door refuses what was meant for another server: no page of another site can ask this
    one."""

    def __init__(self, within: AsgiApp, names: OwnNames, fleet: Fleet | None) -> None:
        self._within = within
        self._names = names
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                scope[FORWARDED] = self._admitted(scope)
            except Problem as problem:
                await _rest_refusal(problem)(scope, receive, send)
                return
        with HELD.some() as scope[TAKE]:
            await self._within(scope, receive, send)

    def _admitted(self, scope: Scope) -> bool:
        """Whether another server of the fleet has passed it on. Raises `Problem`."""
        if self._fleet and self._fleet.was_forwarded(scope):
            return True
        if refused := self._names.refusal(_without_box(scope)):
            raise Problem("permission_denied", refused[1], refused[0])
        return False


def _without_box(scope: Scope) -> Scope:
    """The request without a sandbox's name: if the host's first label names one, the rest is the
    server's."""
    headers = [
        (name, _BOX_LABEL.sub(b"", value) if name == b"host" else value)
        for name, value in scope["headers"]
    ]
    return {**scope, "headers": headers}


class _Keyed:
    """Calls of REST, by the holder of the server's key."""

    def __init__(self, boxes: Boxes, api_key: str, fleet: Fleet | None) -> None:
        self._boxes, self._key, self._fleet = boxes, api_key.encode(), fleet

    def of(self, handler: Outside) -> Outside:
        async def work(request: Request) -> Response:
            self._admit(request)
            name = request.path_params.get("id", "")
            other = await _elsewhere(request, name, self._boxes, self._fleet)
            return other or await handler(request)

        return _unkeyed(work)

    def _admit(self, request: Request) -> None:
        given = request.headers.get("x-api-key", "").encode()
        if self._key and not hmac.compare_digest(given, self._key):
            raise Problem("unauthenticated", "the API key is not this server's")
        if not is_json(request.scope):
            raise Problem("invalid_argument", "send application/json", 415)


def _unkeyed(handler: Outside) -> Outside:
    async def answer(request: Request) -> Response:
        return await _answered(request, lambda: handler(request), _rest_refusal, _not_listed)

    return answer


class _Inside:
    """Calls into one sandbox, by the holder of its token."""

    def __init__(
        self, boxes: Boxes, forget: Callable[[str], None], fleet: Fleet | None,
        signatures: Signatures,
    ) -> None:  # fmt: skip
        self._boxes, self._fleet, self._signatures = boxes, fleet, signatures
        self._forget = forget

    def of(self, handler: Inside, signed: bool = False) -> Outside:
        async def answer(request: Request) -> Response:
            async def work() -> Response:
                name, other = await self._way(request, signed)
                if other:
                    return other
                box = await self._admitted(request, name, signed)
                return await handler(request, box, _user(request))

            return await _answered(request, work, refusal, self._gone)

        return answer

    async def health(self, request: Request) -> Response:
        """Open to everybody: it says no more than whether the sandbox lives."""

        async def work() -> Response:
            name, other = await self._way(request)
            if other:
                return other
            box = await self._boxes.find(name)
            await box.session.info()
            return Response(status_code=204)

        return await _answered(request, work, refusal, self._gone)

    async def _way(self, request: Request, signed: bool = False) -> tuple[str, Response | None]:
        """The sandbox, which the signature of a file names too, and how another machine answers
        for it. Its own server asks for the token."""
        name = _box(request)
        if name or not signed or "signature" not in request.query_params:
            return name, await _elsewhere(request, name, self._boxes, self._fleet)
        name = await self._signatures.signer(request)
        return name, None if name else await self._signatures.elsewhere(request)

    async def _admitted(self, request: Request, name: str, signed: bool) -> Box:
        """A request is admitted by the token; for a file also by a signature, which is that of one
        sandbox's token."""
        if name:
            box = await self._boxes.find(name)
            shown = [request.headers.get(header, "") for header in _TOKENS]
            if any(hmac.compare_digest(one.encode(), box.token.encode()) for one in shown):
                return box
            if signed and http_files.signed(request, box.token):
                return box
        raise Problem("unauthenticated", "the access token is not this sandbox's")

    def _gone(self, name: str) -> Response:
        self._forget(name)
        said = {"sandboxId": name, "message": "The sandbox was not found", "code": 502}
        return JSONResponse(said, status_code=502)


async def _elsewhere(
    request: Request, name: str, boxes: Boxes, fleet: Fleet | None
) -> Response | None:
    """The way to the machine that has this sandbox; None if it is this one, or none."""
    if fleet is None or was_forwarded(request) or not is_name(name) or boxes.here(name):
        return None
    machine = await fleet.holder(name)
    return fleet.passed_on(machine, name) if machine else None


async def _answered(
    request: Request,
    work: Callable[[], Awaitable[Response]],
    refused: Callable[[Problem], Response],
    gone: Callable[[str], Response],
) -> Response:
    try:
        return await unless_gone(request, work) or Response(status_code=499)
    except Problem as problem:
        return refused(problem)
    except BoxGone as absent:
        return gone(absent.box)
    except SessionGone:
        return gone(request.path_params.get("id") or _box(request))
    except EXPECTED as found:
        answer = problem_of(found)
        if answer.code == "internal":
            log.warning("%s %s: %s", request.method, request.url.path, found)
        return refused(answer)


def _rest_refusal(problem: Problem) -> Response:
    said = {"code": problem.status, "message": problem.message}
    return JSONResponse(said, status_code=problem.status, headers=retry(problem))


def _not_listed(name: str) -> Response:
    return _rest_refusal(Problem("not_found", f"sandbox {name!r} was not found"))


def _box(request: Request) -> str:
    """Find the sandbox by the SDK's header, or by the host's first label, `49983-<id>.domain`, or
    by the token."""
    if name := request.headers.get("e2b-sandbox-id"):
        return name
    port, _, name = request.headers.get("host", "").partition(".")[0].partition("-")
    if is_number(port) and is_name(name):
        return name
    return box_of(request.headers.get(_TOKENS[0], ""))


def _user(request: Request) -> str:
    if name := request.query_params.get("username"):
        return name
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text).decode().partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise Problem("unauthenticated", "Authorization names no user") from None
