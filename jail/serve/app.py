"""The routes, as a plain ASGI application: requests are few and alike, and the way is short."""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from prometheus_client import Metric
from pydantic import ValidationError

from ground.http import Sheet
from ground.http.guard import Receive, Scope, Send
from ground.http.held import Held
from jail import Limits, Outcome
from jail import sandbox as provider
from jail.answer import body_of, result_of
from jail.errors import LimitRefused, RequestRefused, SandboxBroken, SandboxFailure, SandboxUnfit
from jail.jails import Jails
from jail.judge.run import Judging
from jail.outcome import Program
from jail.serve import notebook, online_judge, openapi
from jail.serve.requests import BadFile, Line, NoRoom, RunCode, RunJupyter, Tally

log = logging.getLogger(__name__)

Answer = tuple[int, Any]

_LARGEST_BODY = 64 << 20
_MOST_AT_ONCE = 4 * _LARGEST_BODY  # of all bodies that are here, half ones and those in line


class Gone(Exception):
    """The client went away before it had its answer."""


class TooLarge(Exception):
    """The body is longer than any may be."""


class App:
    """The application serves `/run_code`, `/run_jupyter` and `/v1/ping` over one set of jails; the
    rest is the guard's."""

    def __init__(
        self, jails: Jails, defaults: Limits, line: Line, judging: Judging | None = None
    ) -> None:
        self._jails = jails
        self._defaults = defaults
        self._line = line
        self._judging = judging or Judging(jails, defaults, cache_bytes=0)
        self._tally = Tally()
        self._held = Held(_MOST_AT_ONCE, NoRoom)
        self._routes: dict[str, dict[str, Callable[[bytearray], Coroutine[Any, Any, Answer]]]] = {
            "/run_code": {"POST": self._run_code},
            "/run_jupyter": {"POST": self._run_jupyter},
            "/submit": {"POST": self._submit},
            "/get_prompts": {"POST": self._get_prompts},
            "/common_evaluate": {"POST": self._evaluate},
            "/common_evaluate_batch": {"POST": self._evaluate},
            "/v1/ping": {"GET": _pong},
            "/openapi.json": {"GET": self._document},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            phase = (await receive())["type"]
            if phase == "lifespan.shutdown":
                await self._jails.close()
            await send({"type": f"{phase}.complete"})
            if phase == "lifespan.shutdown":
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["path"])
        status: int
        body: Any
        headers = [(b"content-type", b"application/json")]
        if route is None:
            status, body = HTTPStatus.NOT_FOUND, {"detail": "Not Found"}
        elif scope["method"] not in route:
            status, body = HTTPStatus.METHOD_NOT_ALLOWED, {"detail": "Method Not Allowed"}
            headers.append((b"allow", ", ".join(route).encode()))
        else:
            try:
                status, body = await self._answer(route[scope["method"]], receive)
            except Gone:
                return
        content = json.dumps(body).encode()
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _answer(
        self, handle: Callable[[bytearray], Coroutine[Any, Any, Answer]], receive: Receive
    ) -> Answer:
        try:
            with self._held.some() as take:
                body = await self._read(receive, take)
                return await _unless_gone(handle(body), receive)
        except TooLarge:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {
                "detail": f"a request is at most {_LARGEST_BODY} bytes"
            }
        except NoRoom as full:
            self._tally.ended("no_room")
            return HTTPStatus.GATEWAY_TIMEOUT, {"detail": f"the sandbox has no room: {full}"}
        except (RequestRefused, online_judge.NotHere) as refusal:
            self._tally.ended("refused")
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"detail": str(refusal)}
        except SandboxFailure as failure:
            self._tally.ended("infrastructure")
            return HTTPStatus.GATEWAY_TIMEOUT, {"detail": f"the sandbox failed: {failure}"}
        except ValidationError as refusal:
            return HTTPStatus.UNPROCESSABLE_ENTITY, {"detail": _refusals(refusal)}

    async def _read(self, receive: Receive, take: Callable[[int], None]) -> bytearray:
        """The whole body. What is here of all bodies together is bounded."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            part = message.get("body", b"")
            body += part
            if len(body) > _LARGEST_BODY:
                raise TooLarge
            take(len(part))
            more = message.get("more_body", False)
        return body

    async def _run_code(self, body: bytearray) -> Answer:
        """Run one program."""
        request = RunCode.model_validate_json(body, context=self._jails.lacking)
        async with self._line.place():
            with self._tally.running():
                try:
                    outcome = await self._jails.run(self._program(request))
                except (BadFile, LimitRefused) as refusal:
                    outcome = Outcome("refused", self._jails.level, error=str(refusal))
        self._tally.ended(outcome.status)
        if outcome.status == "infrastructure":
            log.error("a program could not be run: %s", outcome.error)
        return HTTPStatus.OK, body_of(result_of(outcome))

    async def _run_jupyter(self, body: bytearray) -> Answer:
        """Run cells in one interpreter."""
        request = RunJupyter.model_validate_json(body)
        async with self._line.place():
            with self._tally.running():
                answer = await notebook.run(self._jails, self._defaults, request)
        self._tally.ended(f"notebook_{answer['status']}".lower())
        return HTTPStatus.OK, answer

    async def _submit(self, body: bytearray) -> Answer:
        """Judge a completion against the cases in the request."""
        asked = online_judge.Submit.model_validate_json(body, context=self._jails.lacking)
        return await self._judged(online_judge.submit(self._judging, asked))

    async def _evaluate(self, body: bytearray) -> Answer:
        """Judge a completion against the cases in the request, as ScaleBox does."""
        asked = online_judge.Evaluate.model_validate_json(body, context=self._jails.lacking)
        return await self._judged(online_judge.evaluate(self._judging, asked))

    async def _get_prompts(self, body: bytearray) -> Answer:
        """The prompts of the problems in the request."""
        asked = online_judge.GetPrompts.model_validate_json(body, context=self._jails.lacking)
        return await online_judge.get_prompts(asked)

    async def _judged(self, judging: Coroutine[Any, Any, Answer]) -> Answer:
        try:
            async with self._line.place():
                with self._tally.running():
                    status, answer = await judging
        except SandboxUnfit as unfit:
            raise RequestRefused(str(unfit)) from None
        finally:
            judging.close()  # it has not begun, where there was no room
        self._tally.ended("judged" if status == HTTPStatus.OK else "infrastructure")
        return status, answer

    async def _document(self, body: bytearray) -> Answer:
        """The OpenAPI description of this service."""
        return HTTPStatus.OK, openapi.described(self._routes, self._jails.lacking)

    def _program(self, request: RunCode) -> Program:
        return Program(
            request.code,
            request.language,
            stdin=(request.stdin or "").encode(errors="surrogatepass"),
            files=request.contents(),
            fetch=request.fetch_files,
            arguments=request.args if request.language == "pytest" else (),
            limits=provider.limits_for(
                self._defaults, request.run_timeout, request.compile_timeout, request.memory
            ),
        )

    async def health(self) -> dict[str, Any]:
        """A program is run to its end, in a place like any other; unless all places are taken:
        then programs do run."""
        if not self._line.full:
            async with self._line.place():
                outcome = await self._jails.run(Program("", "python", limits=self._defaults))
            if outcome.status != "finished":
                raise SandboxBroken(
                    f"an empty program ended as {outcome.status!r}: {outcome.error}",
                    reason="unhealthy",
                )
        return {
            "isolation": self._jails.level,
            "memory_by": self._jails.memory_by,
            "waiting": self._line.waiting,
            "fork_server_restarts": self._jails.restarts,
        }

    async def figures(self) -> list[Metric]:
        sheet = Sheet()
        self._tally.enter(sheet)
        sheet.gauge("penstock_sandbox_waiting", "Requests that wait for a place.",
                    self._line.waiting)  # fmt: skip
        sheet.gauge("penstock_sandbox_places", "Programs that may run at once.",
                    self._jails.concurrency)  # fmt: skip
        sheet.gauge("penstock_sandbox_isolation", "1 for the level that programs run at.", 1,
                    level=self._jails.level, memory_by=self._jails.memory_by)  # fmt: skip
        sheet.count("penstock_sandbox_fork_server_restarts_total",
                    "Starts of the fork server after its first.", self._jails.restarts)  # fmt: skip
        return sheet.families()


async def _pong(body: bytearray) -> Answer:
    """Says `pong`."""
    return HTTPStatus.OK, "pong"


async def _unless_gone(handling: Coroutine[Any, Any, Answer], receive: Receive) -> Answer:
    """A program whose client has gone is stopped; it would hold its place for nobody."""
    work = asyncio.ensure_future(handling)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Gone
        return work.result()
    finally:
        for task in (work, gone):
            task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusals(refusal: ValidationError) -> list[dict[str, Any]]:
    """Answer refusals in the shape that FastAPI gives upstream's."""
    return [
        {"type": error["type"], "loc": ["body", *error["loc"]], "msg": error["msg"]}
        for error in refusal.errors(include_url=False, include_input=False, include_context=False)
    ]
