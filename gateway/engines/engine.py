"""The gateway asks this of an engine: ids of a conversation, tokens behind ids, meaning of tokens.

Each engine does it by its own endpoints. So templates, tokenizers and parsers are the engine's, and
what is recorded is what it evaluated and sampled.
"""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from gateway.calls import UNKNOWN_VERSION as UNKNOWN
from gateway.engines.models import Answer, Chat, Part, Rendered
from gateway.engines.tail import Tail
from gateway.errors import EngineFailed, EngineRefused, EngineUnfit
from ground.backoff import retry_after_seconds
from ground.http.wires import Wire, Wires

LOWEST = -9999.0
"""What vLLM sends for a log-probability of minus infinity."""

_OK = 200
SHORT = Chat([{"role": "user", "content": "a"}])  # to probe an engine with
_KEPT = 4.0  # seconds; engines hang up after 5 s idle
_FRESH = 1.0  # seconds for which a version that was read is a lower bound worth having


class Engine:
    """An engine at one URL. `model` is the name that it serves its model under."""

    kind: ClassVar[str]
    tail: Tail

    def __init__(self, url: str, *, timeout: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self.model = ""
        self.model_len = 0
        self.parses_tools = True
        self._wires = Wires(kept=_KEPT)
        self._timeout = timeout
        at = urlsplit(self.url)
        self._origin, self._path = f"{at.scheme}://{at.netloc}", at.path
        self._fields = f"HTTP/1.1\r\nhost: {at.netloc}\r\ncontent-type: application/json\r\n"
        self._probed = False
        self._version: tuple[float, int] = (-math.inf, UNKNOWN)
        self._reading: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def probe(self) -> None:
        """Find out what it can do; `EngineUnfit` says in a sentence what it cannot."""
        models = await self.get("/v1/models")
        first = models["data"][0]
        self.model, self.model_len = first["id"], int(first.get("max_model_len") or 0)
        await self._probe()
        self.tail = await Tail.probed(self.render)
        await self._refuse_two_beginnings()
        self._probed = True

    async def render(self, chat: Chat, *, ends: bool = False) -> Rendered:
        """The ids of a conversation, up to where the answer begins; if it `ends`, without that."""
        raise NotImplementedError

    async def generate(
        self, ids: Sequence[int], chat: Chat, params: Mapping[str, Any], rid: str
    ) -> Part:
        """Sample behind these ids. A failure on the way is in the part, with what came before."""
        raise NotImplementedError

    async def parse(self, part: Part, prompt: Sequence[int], chat: Chat) -> Answer:
        """The meaning of what was sampled behind this prompt."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Close its connections."""
        self._wires.close()

    # For the engines themselves

    async def _probe(self) -> None:
        raise NotImplementedError

    async def _one_token(self) -> tuple[Sequence[int], Part]:
        """Render `SHORT`, and sample a token behind its ids. Raises what the part failed by.

        Gateways that start together probe an engine together, and SGLang refuses a request's id
        that it is serving: so each has its own."""
        ids = (await self.render(SHORT)).ids
        part = await self.generate(ids, SHORT, {"max_tokens": 1}, f"probe-{secrets.token_hex(6)}")
        if part.failure is not None:
            raise part.failure
        return ids, part

    async def _refuse_two_beginnings(self) -> None:
        """A template that writes its beginning while the tokenizer adds one gives two."""
        ids = (await self.render(SHORT)).ids
        if len(ids) > 1 and ids[0] == ids[1]:
            raise EngineUnfit(
                self.url,
                f"a conversation begins with the token {ids[0]} twice: its template writes the "
                "beginning of the text and its tokenizer adds another one. Change one of the two",
            )

    async def _read_version(self) -> int:
        raise NotImplementedError

    async def version(self, *, now: bool = False) -> int:
        """The version of its weights. `now` is a reading that begins after this call; else one
        of the last second serves. Those who ask together share a reading."""
        if not now and time.monotonic() - self._version[0] < _FRESH:
            return self._version[1]
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read_version_noted())
            return await asyncio.shield(self._reading)
        if not now:
            return await asyncio.shield(self._reading)
        if self._next is None or self._next.done():
            self._next = asyncio.ensure_future(self._after(self._reading))
        return await asyncio.shield(self._next)

    async def _after(self, reading: asyncio.Task[int]) -> int:
        await asyncio.wait([reading])
        self._reading = asyncio.current_task()
        self._next = None
        return await self._read_version_noted()

    async def _read_version_noted(self) -> int:
        try:
            found = await self._read_version()
        except (EngineFailed, EngineRefused):
            found = UNKNOWN
        self._version = (time.monotonic(), found)
        return found

    async def get(self, path: str) -> Any:
        """The JSON at a path."""
        return await self._json("GET", path)

    async def post(self, path: str, body: Any, *, samples: bool = False) -> Any:
        """The JSON that a request is answered with."""
        return await self._json("POST", path, body, samples=samples)

    async def _json(
        self, method: str, path: str, body: Any = None, *, samples: bool = False
    ) -> Any:
        async with self._asked(method, path, body, again=not samples) as (wire, pieces):
            content = b"".join([piece async for piece in pieces])
            self._check(wire, content)
        try:
            return json.loads(content)
        except ValueError as failure:
            raise EngineFailed(self.url, f"{path} answered no JSON: {failure}") from None

    @asynccontextmanager
    async def stream(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[Any]]:
        """The events of an answer as they come; after `[DONE]` nothing counts."""
        async with self._asked("POST", path, body, again=False) as (wire, pieces):
            if wire.status != _OK:
                self._check(wire, b"".join([piece async for piece in pieces]))
            yield self._events(pieces)

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, body: Any, *, again: bool
    ) -> AsyncIterator[tuple[Wire, AsyncIterator[bytes]]]:
        """An answer whose head has come. An engine may close an idle connection just when it is
        used: what may be asked `again` is then asked on a new one. What samples may not, for the
        engine may have died of it, which its gate is to know."""
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        head = f"{method} {self._path}{path} {self._fields}content-length: {len(content)}\r\n\r\n"
        try:
            wire = await self._wires.take(self._origin)
            while True:
                with wire.closed_on_failure():
                    wire.writer.write(head.encode() + content)
                    pieces = wire.answer(method, self._timeout)
                    try:
                        first = await anext(pieces)
                    except ConnectionError:
                        if wire.fresh or wire.begun or not again:
                            raise
                        wire.close()
                        wire = await self._wires.take(self._origin, fresh=True)
                        continue
                    yield wire, _before(first, pieces)
                break
            self._wires.give_back(self._origin, wire)
        except OSError as failure:
            raise EngineFailed(self.url, f"{type(failure).__name__}: {failure}") from None

    async def _events(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        held, done = b"", False
        async for piece in pieces:
            *events, held = (held + piece).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data:").strip()
                done = done or data == b"[DONE]"
                # What follows is read, so that the connection serves again, and does not count.
                if done or not data or event.startswith(b":"):
                    continue
                try:
                    said = json.loads(data)
                except ValueError:
                    raise EngineFailed(self.url, "an event is no JSON") from None
                if isinstance(said, dict) and said.get("error"):
                    raise EngineFailed(self.url, f"it broke off: {_reason(said)}")
                yield said

    def _check(self, wire: Wire, content: bytes) -> None:
        status = wire.status
        if status == _OK:
            return
        try:
            reason = _reason(json.loads(content))
        except ValueError:
            reason = content[:300].decode(errors="replace")
        if status in (401, 403) and not self._probed:
            raise EngineUnfit(
                self.url,
                f"it asks for a key (status {status}: {reason}), and the gateway has none: "
                "start it without --api-key, where only your machines reach it",
            )
        # What was there at the probe and is no more is away: a router says so in an engine's place.
        if status in (400, 413, 422) or (status in (404, 405) and not self._probed):
            raise EngineRefused(self.url, status, reason)
        after = retry_after_seconds(dict(wire.headers).get(b"retry-after", b"").decode("latin-1"))
        raise EngineFailed(
            self.url, f"status {status}: {reason}", overloaded=status in (429, 503), after=after
        )


async def _before(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _reason(said: Any) -> str:
    """The words of an engine's error, in whichever of their shapes."""
    found = said
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and name in found:
            found = found[name]
    return str(found)[:1000]


def logprob(value: Any) -> float:
    """A log-probability as it was sent; NaN, if it is none that a token can have."""
    if isinstance(value, int | float) and math.isfinite(value) and value > LOWEST:
        return float(value)
    return math.nan


def version_of(text: Any) -> int:
    """A version as the buffer counts them; names that are no number are unknown."""
    try:
        number = int(text)
    except (TypeError, ValueError):
        return UNKNOWN
    return number if number >= 0 else UNKNOWN


def spans_of(said: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Run lengths, of spans with a begin and an end over what was sampled."""
    return [
        [int(span["end"]) - int(span["start"]), version_of(span["version"])]
        for span in said
        if span["end"] > span["start"]
    ]
