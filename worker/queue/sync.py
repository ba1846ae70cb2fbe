"""A code queue has this face for code that blocks its thread."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Unpack

from ground.process import from_thread
from ground.redis.answers import ThreadAnswer
from jail.judge.asking import CaseSource, JudgeOptions
from jail.judge.models import JudgeResult
from jail.models import CodeResult
from worker.queue.handle import SyncHandle, read_outcome, sync_as_completed
from worker.queue.judge_by_queue import Asked, CallTime, without_a_loop
from worker.queue.order import Order
from worker.queue.shares import Charge, QueueShares, Shares
from worker.queue.submitting import Program, Submitter


class SyncCodeQueue:
    """The queue for threads, as `queue.sync` has it: its methods block the calling thread."""

    def __init__(self, submitter: Submitter, shares: QueueShares) -> None:
        self._submitter = submitter
        self._shares = shares

    def run(
        self,
        program: Program,
        *,
        timeout: float | None = None,
        token: str | None = None,
        share: str | None = None,
    ) -> CodeResult:
        (result,) = self._results([program], timeout, token, share)
        return result

    def run_many(
        self,
        programs: Iterable[Program],
        *,
        timeout: float | None = None,
        share: str | None = None,
    ) -> list[CodeResult]:
        return self._results(programs, timeout, None, share)

    def judge(
        self,
        code: str,
        cases: CaseSource,
        *,
        timeout: float | None = None,
        token: str | None = None,
        share: str | None = None,
        **options: Unpack[JudgeOptions],
    ) -> JudgeResult:
        asked = Asked(self._submitter, CallTime(timeout), code, cases, options)
        return without_a_loop(asked.judged(token, share, _blocking, self._outcome_of))

    def submit(
        self,
        program: Program,
        *,
        timeout: float | None = None,
        token: str | None = None,
        share: str | None = None,
    ) -> SyncHandle:
        ack = ThreadAnswer()
        order = self._submitter.submit(program, timeout, token, ack, queued=True, share=share)
        self._awaited(order, ack)
        return SyncHandle(order)

    def as_completed(self, handles: Iterable[SyncHandle]) -> Iterator[SyncHandle]:
        return sync_as_completed(handles)

    def set_weights(self, weights: Mapping[str, float | None], *, by: Charge | None = None) -> None:
        self._shares.set_weights(weights, by)

    def shares(self, most: int = 100) -> Shares:
        return self._shares.read(most)

    async def _outcome_of(self, submit: Callable[[ThreadAnswer], Order]) -> Any:
        answer = ThreadAnswer()
        return self._awaited(submit(answer), answer)

    def _awaited(self, order: Order, answer: ThreadAnswer) -> Any:
        try:
            answer.wait(None)
        except BaseException:
            self._submitter.abandon([order])
            raise
        return answer.taken()

    def _results(
        self,
        programs: Iterable[Program],
        timeout: float | None,
        token: str | None,
        share: str | None,
    ) -> list[CodeResult]:
        jobs = self._submitter.requests(programs)
        answers, orders = [ThreadAnswer() for _ in jobs], list[Order]()
        try:
            for job, answer in zip(jobs, answers, strict=True):
                orders.append(self._submitter.submit(job, timeout, token, answer, share=share))
            for answer in answers:
                answer.wait(None)
                answer.taken()
        except BaseException:
            self._submitter.abandon(orders)
            raise
        return [read_outcome(answer.outcome) for answer in answers]


async def _blocking(within: CallTime, call: Callable[[], None]) -> None:
    if within.timeout is None:
        call()
    else:
        from_thread(within.in_a_thread(call))
