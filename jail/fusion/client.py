"""A remote Sandbox Fusion, or several, over HTTP: one attempt a call, every failure typed.

A program's own end is a `CodeResult`; anything else is a `SandboxFailure`. A
sandbox that hangs, drips or floods costs at most a deadline and a size.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Collection, Mapping, Sequence

import httpx

from ground import tracing
from jail.errors import (
    SandboxBroken,
    SandboxFailure,
    SandboxTimeout,
    SandboxUnfit,
    SandboxUnreachable,
)
from jail.fusion.endpoints import Connections, Endpoint, Endpoints, refuses, run_code_url
from jail.fusion.wire import body_of, failure_of, is_flood, read_answer
from jail.models import LANGUAGES, OUTPUT_LIMIT, CodeRequest, CodeResult

# httpx logs each request's whole URL at INFO, and a query may hold a key.
if (_httpx_log := logging.getLogger("httpx")).level == logging.NOTSET:
    _httpx_log.setLevel(logging.WARNING)


_ON_THE_WAY = 10.0  # what a server that has begun a program may take besides it


class SandboxFusion:
    """A Sandbox Fusion server, or any that speaks its `/run_code`.

        sandbox = SandboxFusion(["http://sandbox-1:8080", "http://sandbox-2:8080"])
        result = await sandbox.run(CodeRequest(code="print(1)"))

    Make one for each event loop; constructing it opens nothing. `headers` go with
    every request, and are never logged. `margin` is what a call may take beyond
    the program's own time limits: on the way, and in the line of a server that is full,
    which is not the program's time. An answer above `max_answer` bytes is cut off.
    Absolute names in `fetch_files` need `absolute_fetch`: a server that isolates
    nothing, which is its default, hands out its own files by them.
    """

    name = "fusion"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        languages: Collection[str] = LANGUAGES,
        margin: float = 40.0,
        max_answer: int = 16 << 20,
        max_output: int = OUTPUT_LIMIT,
        absolute_fetch: bool = False,
    ) -> None:
        given = [urls] if isinstance(urls, str) else urls
        self._endpoints = Endpoints([run_code_url(url) for url in given])
        self._headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",  # a small answer must not unpack into a large one
            **(headers or {}),
        }
        self.languages = frozenset(languages)
        self._margin, self._max_answer, self._max_output = margin, max_answer, max_output
        self._absolute_fetch = absolute_fetch
        self._open: Connections | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, request: CodeRequest) -> CodeResult:
        """Run the program once. Raises a `SandboxFailure` where its outcome is not known."""
        self._require_servable(request)
        began = time.monotonic()
        with self._endpoints.borrow() as endpoint:
            raw = await self._answer(endpoint, request)
            result = read_answer(raw, self._max_answer, endpoint.shown)
        took = {
            "running_seconds": time.monotonic() - began,
            "correlation_id": request.correlation_id,
        }
        result = result.bounded(max(self._max_output, request.KEEPS)).model_copy(update=took)
        # Outside of `borrow`: that one program could not be run says little of the endpoint.
        if result.status == "SandboxError" or result.error_kind == "infrastructure":
            reason = result.error_reason or "sandbox_error"
            # Its message quotes the program; that belongs in the result, not in a log.
            raise SandboxBroken(
                f"{endpoint.shown} could not run the program: {reason}",
                reason=reason,
                result=result,
            )
        return result

    async def ask(self, request: CodeRequest) -> bytes:
        """Run the program once and give the server's answer as it came, for another reader."""
        self._require_servable(request)
        with self._endpoints.borrow() as endpoint:
            return await self._answer(endpoint, request)

    def is_flood(self, answer: bytes) -> bool:
        """Whether the answer was cut off, for its program had printed too much."""
        return is_flood(answer, self._max_answer)

    def outlives(self, request: CodeRequest) -> float:
        """A server that isolates nothing does not notice that a client has gone."""
        return request.compile_timeout + request.run_timeout + min(self._margin, _ON_THE_WAY)

    def unreachable(self) -> list[str]:
        """The servers that could not be reached when a program was last sent there."""
        return self._endpoints.unreachable()

    async def close(self) -> None:
        """Close the connections; on the loop that used them. Harmless when repeated."""
        connections, self._open = self._open, None
        if connections is not None:
            await connections.close()

    def _require_servable(self, request: CodeRequest) -> None:
        if request.language not in self.languages:
            raise SandboxUnfit(
                f"this sandbox runs {', '.join(sorted(self.languages))}, not {request.language}",
                reason="language",
            )
        absolute = [name for name in request.fetch_files if name.startswith("/")]
        if absolute and not self._absolute_fetch:
            raise SandboxUnfit(
                f"fetch_files has {absolute[0]!r}: by an absolute name a server without isolation "
                "hands out its own files; if yours isolates, allow it with absolute_fetch=True",
                reason="absolute_fetch",
            )

    async def _answer(self, endpoint: Endpoint, request: CodeRequest) -> bytes:
        allowed = request.compile_timeout + request.run_timeout + self._margin
        reply, raw = await self._exchange(endpoint, request, allowed)
        if failure := self._failure(endpoint, reply, raw):
            raise failure
        return raw

    async def _exchange(
        self, endpoint: Endpoint, request: CodeRequest, allowed: float
    ) -> tuple[httpx.Response, bytes]:
        """Post the program and read the answer, at most one byte more than is allowed of it."""
        identity = {"X-Correlation-ID": request.correlation_id} if request.correlation_id else {}
        identity |= tracing.headers()
        body = body_of(request)
        try:
            async with (
                asyncio.timeout(allowed),
                self._connections().borrow(endpoint.url) as client,
                client.stream("POST", endpoint.url, content=body, headers=identity) as reply,
            ):
                return reply, await _read(reply, self._max_answer + 1)
        except TimeoutError:
            raise SandboxTimeout(
                f"{endpoint.shown} gave no whole answer within {allowed:g} s",
                reason="timeout",
                may_be_running=True,
            ) from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as failure:
            raise SandboxUnreachable(
                f"no connection to {endpoint.shown}: {_cause(failure)}",
                reason="connect",
            ) from None
        except httpx.RequestError as failure:
            raise SandboxUnreachable(
                f"the connection to {endpoint.shown} was cut: {type(failure).__name__} {failure}",
                reason="cut",
                may_be_running=not await refuses(endpoint.url),
            ) from None

    def _failure(
        self, endpoint: Endpoint, reply: httpx.Response, raw: bytes
    ) -> SandboxFailure | None:
        retry_after = reply.headers.get("retry-after", "")
        has_peers = len(self._endpoints.all) > 1
        return failure_of(
            reply.status_code, retry_after, endpoint.shown, raw=raw, has_peers=has_peers
        )

    def _connections(self) -> Connections:
        loop = asyncio.get_running_loop()
        if self._open is None:
            self._open, self._loop = Connections(self._headers), loop
        if self._loop is not loop:
            raise RuntimeError(
                "a SandboxFusion belongs to the event loop that first used it: make one for each "
                "loop, or close it before using it on another"
            )
        return self._open


def _cause(failure: BaseException) -> str:
    """The system's own error at the root: httpx and anyio say only that all attempts failed."""
    root: BaseException | None = failure
    while root is not None:
        if isinstance(root, OSError) and root.errno in (errno.EMFILE, errno.ENFILE):
            return str(root)
        inner = root.exceptions[0] if isinstance(root, BaseExceptionGroup) else None
        root = inner or root.__cause__ or root.__context__
    return f"{type(failure).__name__} {failure}"


async def _read(reply: httpx.Response, most: int) -> bytes:
    raw = bytearray()
    async for piece in reply.aiter_bytes():
        raw += piece
        if len(raw) >= most:
            break
    return bytes(raw[:most])
