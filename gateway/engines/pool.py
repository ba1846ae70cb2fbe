"""The engines of one model, each behind a gate. A session keeps to one for as long as it lives."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterable
from hashlib import blake2b
from urllib.parse import urlsplit

from gateway.engines.engine import Engine
from gateway.engines.sglang import Sglang
from gateway.engines.vllm import PlainVllm, Vllm
from gateway.errors import EngineError, EngineFailed, EngineUnfit
from gateway.settings import GatewaySettings
from ground import SettingError
from ground.backoff import backoff
from ground.redis.connect import AnyRedis
from limiter import Adaptive, Gate, TokenBucket

log = logging.getLogger(__name__)

KINDS: dict[str, type[Engine]] = {each.kind: each for each in (Vllm, PlainVllm, Sglang)}
_SETTING = "PENSTOCK_GATEWAY_ENGINES"
_START = 32  # generations at once, from which a gate finds its limit
_REST = 2.0  # seconds for which an engine that failed is asked last
_REASON = 300  # characters
_EXAMPLE = "PENSTOCK_GATEWAY_ENGINES=sglang=http://10.0.0.7:30000"


class Pool:
    """`await Pool.started(redis, settings)`; all its engines must serve the same model."""

    def __init__(
        self, engines: Iterable[Engine], redis: AnyRedis, settings: GatewaySettings
    ) -> None:
        self.engines = list(engines)
        most = settings.gateway_engine_limit
        limit = Adaptive(start=min(_START, most), min=1, max=most)
        self._gates = {
            engine.url: TokenBucket(redis, gate_name(engine.url), limit=limit)
            for engine in self.engines
        }
        self._resting: dict[str, float] = {}
        self.failing: dict[str, str] = {}  # engines that failed when they were asked last, and why

    @classmethod
    async def started(cls, redis: AnyRedis, settings: GatewaySettings) -> Pool:
        """Make a pool of engines, probed and found to be alike. `EngineUnfit` says what an engine
        cannot do."""
        pool = cls(named(settings), redis, settings)
        try:
            await pool._probe()
        except BaseException:
            await pool.aclose()
            raise
        return pool

    async def _probe(self) -> None:
        await asyncio.gather(*(_probed(engine) for engine in self.engines))
        first = self.engines[0]
        for engine in self.engines:
            log.info(
                "an engine is ready",
                extra={"engine": engine.url, "kind": engine.kind, "model": engine.model,
                       "tails": ", ".join(engine.tail.renders) or "none"},
            )  # fmt: skip
            if (engine.tail.close, engine.tail.bases) != (first.tail.close, first.tail.bases):
                raise EngineUnfit(
                    engine.url,
                    f"it renders a conversation otherwise than {first.url} does: all engines of "
                    "a gateway serve the same model, with the same template",
                )

    def pick(self, sid: str) -> Engine:
        """The session's engine, or another one while that rests after a failure."""
        now = time.monotonic()

        def weight(engine: Engine) -> tuple[bool, bytes]:
            awake = self._resting.get(engine.url, 0.0) <= now
            return awake, blake2b(f"{sid} {engine.url}".encode(), digest_size=8).digest()

        return max(self.engines, key=weight)

    def rest(self, engine: Engine, failure: EngineFailed) -> None:
        """Ask it last for a while."""
        seconds = _REST if failure.after is None else failure.after
        self._resting[engine.url] = time.monotonic() + seconds
        self.failing[engine.url] = str(failure)[:_REASON]

    def answered(self, engine: Engine) -> None:
        """The engine works, or works again."""
        if self.failing:
            self.failing.pop(engine.url, None)

    async def try_again(self) -> None:
        """Ask those that failed for next to nothing: without agents nobody else would see that one
        is back."""
        for engine in self.engines:
            if engine.url in self.failing:
                with contextlib.suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(_REST):
                        await engine.get("/v1/models")
                    self.answered(engine)

    def gate(self, engine: Engine) -> Gate:
        """The gate that all processes pass before they ask this engine for tokens."""
        return self._gates[engine.url]

    @property
    def first(self) -> Engine:
        """Whichever is awake: for what any of them answers alike."""
        return self.pick("")

    async def aclose(self) -> None:
        """Close the connections to all."""
        await asyncio.gather(*(engine.aclose() for engine in self.engines))


async def _probed(engine: Engine) -> None:
    """Probe an engine when it answers: engines take minutes to load their weights."""
    for tries in itertools.count(1):
        try:
            await engine.probe()
            return
        except EngineFailed as failure:
            if tries == 1:
                log.warning("an engine is waited for", extra={"reason": str(failure)})
        await asyncio.sleep(backoff(tries, 0.1, 5.0))


def gate_name(url: str) -> str:
    """The name of an engine's gate, as `penstock limits` shows it."""
    return "engine-" + url.partition("://")[2].replace(":", "-").replace("/", "-")


def _leads_somewhere(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def named(settings: GatewaySettings) -> list[Engine]:
    """The engines that the setting names, not yet asked anything."""
    found: list[Engine] = []
    for part in filter(None, (each.strip() for each in settings.gateway_engines.split(","))):
        kind, _, url = part.partition("=")
        if kind not in KINDS or not _leads_somewhere(url):
            known = ", ".join(KINDS)
            raise SettingError(
                _SETTING, f"{part!r} is not KIND=URL with one of {known}; as in {_EXAMPLE}"
            )
        found.append(KINDS[kind](url, timeout=settings.gateway_engine_timeout))
    if not found:
        raise SettingError(_SETTING, f"is not set: which engines? For example {_EXAMPLE}")
    return found
