"""The trainer's side: programs go in, results come back.

Each call gets exactly one outcome: a `CodeResult`, or a `QueueError` that says why
there is none. What is lost on the way to Redis is sent again under the same
token, and runs once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, Unpack

from ground import SettingError
from ground.keys import check_name
from ground.numbers import check_number, check_whole
from ground.redis.answers import LoopAnswer
from ground.redis.connect import AnyRedis, target_of
from jail.judge.asking import CaseSource, JudgeOptions
from jail.judge.models import JudgeResult
from jail.models import CodeResult
from worker.queue.handle import Handle, as_completed, read_outcome
from worker.queue.judge_by_queue import Asked, CallTime
from worker.queue.order import JobHash, Order
from worker.queue.shares import Charge, QueueShares, Shares
from worker.queue.submitting import Program, Submitter
from worker.queue.sync import SyncCodeQueue
from worker.settings import (
    WhenPaused,
    check_when_paused,
    require_rqs_own_keys,
    result_ttl_here,
    share_here,
)

MIN_TTL = 60  # a shorter one might end before a lost reply is noticed, and run a job twice


class CodeQueue:
    """A queue of code jobs on RQ. Workers run them: `penstock worker code`.

        queue = CodeQueue("redis://10.0.0.5", "code")

        result = await queue.run("print(1)", timeout=60)        # in coroutines
        results = await queue.run_many(programs)
        result = queue.sync.run("print(1)", timeout=60)         # in threads
        result.ok, result.stdout, result.error_kind

    A program is its code, or a `CodeRequest`. A program that fails does not raise: its
    `CodeResult` says so. A `QueueError` says why there is no result. Times are in seconds.

    abandon           what happens to a job whose caller was cancelled, reached its deadline or
                      died: `cancel`, or `keep`
    retries           how often a job runs again that raised on its worker, or whose worker died
    result_ttl        how long Redis keeps a job's result, which its token can fetch again. None:
                      PENSTOCK_RESULT_TTL
    failure_ttl       the same for a job that failed
    spare             what a job may take beyond its program's time limits, for a permit and
                      retries
    patience          how long a call keeps trying while Redis does not answer
    no_workers_after  how long a queue may have no worker before `NoWorkers` is raised
    share             on whose account its jobs run: shares of one queue get workers in turn, by
                      their weights (`shares`). None: PENSTOCK_SHARE; '': none
    when_paused       what a call does while a breaker has paused the queue, or the gate of its
                      workers: `wait`, or `raise` `TrainingPaused` within 5 s. A job that the
                      breaker let through is waited for
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str = "code",
        *,
        abandon: Literal["cancel", "keep"] = "cancel",
        retries: int = 3,
        result_ttl: int | None = None,
        failure_ttl: int = 86400,
        spare: float = 600.0,
        patience: float = 60.0,
        no_workers_after: float = 60.0,
        share: str | None = None,
        when_paused: WhenPaused = "wait",
    ) -> None:
        require_rqs_own_keys()
        try:
            self.name = check_name(name, "a queue")
        except ValueError as refusal:
            raise SettingError("name", str(refusal)) from None
        self.target = target_of(redis)
        check_when_paused(when_paused)
        if abandon not in ("cancel", "keep"):
            raise SettingError("abandon", f"is 'cancel' or 'keep', not {abandon!r}")
        check_whole("retries", retries, 0)
        check_number("spare", spare)
        check_number("patience", patience)
        result_ttl = result_ttl_here(result_ttl)
        check_whole("result_ttl", result_ttl, MIN_TTL)
        check_whole("failure_ttl", failure_ttl, MIN_TTL)
        check_number("no_workers_after", no_workers_after, 0.1)
        hash = JobHash(
            name, result_ttl=result_ttl, failure_ttl=failure_ttl, retries=retries,
            abandon=abandon == "cancel", spare=spare, patience=patience,
            no_workers_after=no_workers_after, share=share_here(share),
            raises=when_paused == "raise",
        )  # fmt: skip
        self._submitter = Submitter(self.target, hash)
        self._shares = QueueShares(self.target, name)

    # Coroutines

    async def run(
        self,
        program: Program,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        token: str | None = None,
        share: str | None = None,
    ) -> CodeResult:
        """Run a program and wait for its result, at most `timeout` seconds. None is no limit.

        A `token` of your own is the job's id. The same token again gives the same job.
        `share` is this call's, in place of the queue object's.
        """
        answer = LoopAnswer()
        order = self._submitter.submit(program, timeout, token, answer, share=share)
        return read_outcome(await self._awaited(order, answer))

    async def run_many(
        self,
        programs: Iterable[Program],
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        share: str | None = None,
    ) -> list[CodeResult]:
        """Run them all; results in the order of the programs.

        Raises at the first that has none, and abandons the rest. `submit` and
        `as_completed` give outcomes one by one, errors included.
        """
        jobs = self._submitter.requests(programs)  # refuse all before running any
        answers, orders = [LoopAnswer() for _ in jobs], list[Order]()
        try:
            for job, answer in zip(jobs, answers, strict=True):
                orders.append(self._submitter.submit(job, timeout, None, answer, share=share))
            for answer in answers:
                await answer.future
                answer.taken()
        except BaseException:
            self._submitter.abandon(orders)
            raise
        return [read_outcome(answer.outcome) for answer in answers]

    async def judge(
        self,
        code: str,
        cases: CaseSource,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        token: str | None = None,
        share: str | None = None,
        **options: Unpack[JudgeOptions],
    ) -> JudgeResult:
        """A verdict for each case: one job, in which the program is compiled once.

        `cases` are a list of `jail.judge.JudgeCase`, or what `jail.judge.read_cases` reads:
        verl's, LiveCodeBench's, CodeContests' and other datasets'. They go to Redis once,
        for all programs. Call `read_cases` once, and pass its result for each program.
        """
        within = CallTime(timeout)
        asked = await within.in_a_thread(
            partial(Asked, self._submitter, within, code, cases, options)
        )
        return await asked.judged(token, share, CallTime.in_a_thread, self._outcome_of)

    async def submit(
        self,
        program: Program,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        token: str | None = None,
        share: str | None = None,
    ) -> Handle:
        """Queue a program and return when Redis has it; `await handle.result()` waits for it."""
        ack = LoopAnswer()
        order = self._submitter.submit(program, timeout, token, ack, queued=True, share=share)
        await self._awaited(order, ack)
        return Handle(order)

    def as_completed(self, handles: Iterable[Handle]) -> AsyncIterator[Handle]:
        """The handles, each when its outcome is there: `async for handle in …`."""
        return as_completed(handles)

    async def set_weights(
        self, weights: Mapping[str, float | None], *, by: Charge | None = None
    ) -> None:
        """Set how many jobs of each share run for one job of another: `{"training": 4}`.

        '*' is for shares without a weight of their own, 1 at first; '' for jobs without a share.
        A share with weight 0 is served when no other waits. None takes a weight away. `by` says
        what is divided by weight: `jobs`, or the `seconds` that they run. None: as it is.
        """
        await asyncio.to_thread(self._shares.set_weights, weights, by)

    async def shares(self, most: int = 100) -> Shares:
        """The shares that wait, in the order of their turns, at most this many; and the weights."""
        return await asyncio.to_thread(self._shares.read, most)

    # Threads

    @property
    def sync(self) -> SyncCodeQueue:
        """A face of the queue for code that blocks."""
        return SyncCodeQueue(self._submitter, self._shares)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.target}>"

    async def _outcome_of(self, submit: Callable[[LoopAnswer], Order]) -> Any:
        answer = LoopAnswer()
        return await self._awaited(submit(answer), answer)

    async def _awaited(self, order: Order, answer: LoopAnswer) -> Any:
        try:
            await answer.future
        except BaseException:
            self._submitter.abandon([order])
            raise
        return answer.taken()
