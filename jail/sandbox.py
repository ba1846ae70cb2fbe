"""`LocalSandbox`: the embedded sandbox behind the worker's protocol.

sandbox = LocalSandbox()
result = await sandbox.run(CodeRequest(code="print(1)"))
await sandbox.close()
"""

import asyncio
import base64
import time
from dataclasses import replace
from functools import cached_property
from typing import Self

from ground import tracing
from jail.answer import failure_of, result_of
from jail.errors import LimitRefused, SandboxUnavailable, SandboxUnfit
from jail.jails import Jails
from jail.judge.models import NOT_JUDGED, JudgeRequest, JudgeResult
from jail.judge.run import Judging
from jail.judge.suite import Suite
from jail.launch import ServerConfig
from jail.limits import CAPS, MB, Limits
from jail.models import OUTPUT_LIMIT, CodeRequest, CodeResult
from jail.outcome import Outcome, Program
from jail.settings import SandboxSettings
from jail.sync import SyncSandbox


def limits_for(
    defaults: Limits, run_timeout: float, compile_timeout: float, memory_mb: int | None
) -> Limits:
    """The operator's limits with what a request asks for; without a memory limit, the
    operator's."""
    memory = defaults.memory if memory_mb is None else memory_mb * MB
    return replace(defaults, wall=run_timeout, compile_wall=compile_timeout, memory=memory)


class LocalSandbox:
    """Programs on this machine, isolated; starts, and tests itself, at the first run.

    What is not given here is as `PENSTOCK_SANDBOX_*` says; `caps` bound what requests ask for.
    """

    name = "local"
    kills_cancelled = True

    def __init__(
        self,
        config: ServerConfig | None = None,
        *,
        defaults: Limits | None = None,
        caps: Limits = CAPS,
        concurrency: int | None = None,
        cache_mb: int | None = None,
    ) -> None:
        settings = SandboxSettings.load()
        self.jails = Jails(
            config or settings.config(), caps=caps,
            concurrency=concurrency or settings.sandbox_concurrency,
        )  # fmt: skip
        self._defaults = defaults or settings.limits()
        cache = settings.sandbox_cache_mb if cache_mb is None else cache_mb
        self._judging = Judging(self.jails, self._defaults, cache * MB)
        self._starting = asyncio.Lock()
        self._started = False

    @classmethod
    def from_settings(cls, settings: SandboxSettings | None = None) -> Self:
        """A sandbox as `PENSTOCK_SANDBOX_*` says."""
        settings = settings or SandboxSettings.load()
        return cls(
            settings.config(),
            defaults=settings.limits(),
            concurrency=settings.sandbox_concurrency,
            cache_mb=settings.sandbox_cache_mb,
        )

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(self.jails.languages)

    @property
    def judged_languages(self) -> frozenset[str]:
        return self.languages - NOT_JUDGED

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        await self._start()
        return await self._judging.judge(request, suite)

    async def run(self, request: CodeRequest) -> CodeResult:
        await self._start()
        began = time.monotonic()
        outcome = await self.jails.run(self._program(request))
        if tracing.on():
            _record(outcome, time.monotonic() - began)
        if outcome.status in ("refused", "infrastructure"):
            raise failure_of(outcome)
        return _result(outcome, request, time.monotonic() - began)

    def _program(self, request: CodeRequest) -> Program:
        try:
            limits = limits_for(
                self._defaults,
                request.run_timeout,
                request.compile_timeout,
                request.memory_limit_mb,
            )
        except LimitRefused as refusal:
            raise SandboxUnfit(f"the local sandbox: {refusal}", reason="refused") from None
        return Program(
            request.code,
            request.language,
            stdin=(request.stdin or "").encode(),
            files={name: base64.b64decode(text) for name, text in request.files.items()},
            fetch=request.fetch_files,
            limits=limits,
        )

    async def start(self) -> None:
        """Done by the first run as well. Raises `SandboxUnavailable`."""
        async with self._starting:
            if self._started:
                return
            self.jails.show_headers(self._judging.builds.open())
            try:
                with tracing.span("start sandbox"):
                    await self.jails.start()
            except SandboxUnavailable:
                await self._judging.builds.close()
                raise
            self._started = True

    async def _start(self) -> None:
        try:
            await self.start()
        except SandboxUnavailable as problem:
            raise SandboxUnfit(str(problem), reason="isolation_unavailable") from None

    @cached_property
    def sync(self) -> SyncSandbox:
        """A face of the sandbox for code that blocks."""
        return SyncSandbox(self)

    async def close(self) -> None:
        await self._judging.builds.close()
        await self.jails.close()
        self._started = False


def _record(outcome: Outcome, seconds: float) -> None:
    """Record what a jail did, as it reports it: it was made, it compiled, it ran the program."""
    steps = [("compile", outcome.compile), ("program", outcome.run)]
    done = [(name, step) for name, step in steps if step is not None]
    at = tracing.ago(sum(step.duration for _, step in done))
    tracing.record("jail", tracing.ago(seconds), at)
    for name, step in done:
        about = {"penstock.status": step.status, "process.exit.code": step.return_code or 0}
        tracing.record(name, at, at + step.duration, about)
        at += step.duration


def _result(outcome: Outcome, request: CodeRequest, seconds: float) -> CodeResult:
    spent = {"running_seconds": seconds, "correlation_id": request.correlation_id}
    result = result_of(outcome).bounded(max(OUTPUT_LIMIT, request.KEEPS))
    return result.model_copy(update=spent)
