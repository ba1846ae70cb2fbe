"""A program is judged: what is asked for is checked and built, then tried on each case."""

import base64
import contextlib
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from jail.answer import command_result_of, failure_of
from jail.errors import LimitRefused, SandboxUnfit
from jail.jails import Jails
from jail.judge.builds import Build, Builds, NotBuilt
from jail.judge.lane import LaneLost
from jail.judge.models import CaseLimits, JudgeRequest, JudgeResult
from jail.judge.program import checker_text, text_of
from jail.judge.suite import Case, Suite
from jail.judge.trial import Cores, Trial, Workshop, why_not_compiled
from jail.languages import LanguageAbsent
from jail.limits import MB, Limits
from jail.models import SHOWN
from jail.outcome import Step


class Judging:
    """A judge judges programs in these jails; one at a time has several lanes, if cores are
    idle."""

    def __init__(self, jails: Jails, defaults: Limits, cache_bytes: int) -> None:
        self.builds = Builds(jails, cache_bytes)
        self._jails = jails
        self._defaults = defaults
        self.cores = Cores(os.cpu_count() or 1)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the builds around the jails' own life: they show programs what the builds need."""
        self._jails.show_headers(self.builds.open())
        try:
            yield
        finally:
            await self.builds.close()

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        """Judge a program by its suite, when a slot is free. Raises `SandboxFailure` if the sandbox
        failed as a whole."""
        began = time.monotonic()
        try:
            async with self._jails.slots:
                result = await self._judge(request, suite)
        except (LimitRefused, LanguageAbsent) as refusal:
            raise SandboxUnfit(f"the local sandbox: {refusal}", reason=refusal.reason) from None
        except (LaneLost, NotBuilt) as lost:
            raise failure_of(lost.outcome) from None
        seconds = time.monotonic() - began
        return result.model_copy(
            update={"isolation": self._jails.level, "running_seconds": seconds}
        )

    async def _judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        if request.interactor and self._jails.level != "ns":
            raise SandboxUnfit(
                f"the local sandbox: an interactor needs the level 'ns', and this is "
                f"{self._jails.level!r}",
                reason="no_interactor",
            )
        given = {name: base64.b64decode(text) for name, text in request.files.items()}
        shop = Workshop(
            self._jails, self.builds, self.cores, self._defaults, self._limits(request),
            request.language, given,
        )  # fmt: skip
        program: Build | None = None
        if not request.compiles_each_case:
            text = text_of(request, Case()) if request.mode == "function" else request.code
            program = await shop.build(text)
            if program.compiled and not program.ok:
                return _not_compiled(program.compiled, len(suite))
        checker = request.checker or request.interactor
        build: Build | None = None
        if checker:
            build = await shop.build_other(checker.language, checker_text(checker), {})
            if build.compiled and not build.ok:
                said = build.compiled.stderr[:SHOWN].decode(errors="replace")
                said = f"the checker does not compile: {said}"
                return _masked("checker_compile", said, len(suite))
        return await Trial(shop, request, suite, program, build).result()

    def _limits(self, request: JudgeRequest) -> Limits:
        """The limits of the whole jail. Neither they nor a case's own are beyond the operator's
        caps."""
        each = [self._of_case(request, own) for own in request.all_limits]
        for limits in each:
            limits.within(self._jails.caps)
        return replace(
            each[0],
            cpu=max(limits.cpu for limits in each),
            wall=max(limits.wall for limits in each),
        )

    def _of_case(self, request: JudgeRequest, own: CaseLimits) -> Limits:
        memory = own.memory_limit_mb
        return replace(
            self._defaults,
            cpu=own.run_timeout or self._defaults.cpu,
            wall=own.wall_timeout or self._defaults.wall,
            compile_wall=request.compile_timeout,
            memory=self._defaults.memory if memory is None else memory * MB,
        )


def _not_compiled(step: Step, count: int) -> JudgeResult:
    return JudgeResult(
        verdicts="C" * count,
        compile_result=command_result_of(step),
        cpu_ms=[0] * count,
        wall_ms=[0] * count,
        memory_kb=[0] * count,
        reasons=dict.fromkeys(range(count), why_not_compiled(step)),
    )


def _masked(reason: str, message: str, count: int) -> JudgeResult:
    return JudgeResult(
        verdicts="M" * count,
        cpu_ms=[0] * count,
        wall_ms=[0] * count,
        memory_kb=[0] * count,
        error_reason=reason,
        message=message,
    )
