"""How a program becomes a job: what both faces of a queue ask of the engine."""

import math
import os
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from ground import SettingError, tracing
from ground.numbers import check_number
from ground.redis.answers import Answer
from ground.redis.url import RedisTarget
from ground.shares import check_share
from jail.errors import RequestRefused
from jail.judge.models import JudgeRequest
from jail.models import CodeRequest
from worker.queue.engine import client_engine
from worker.queue.order import AnyRequest, JobHash, Order
from worker.queue.suite_store import SuiteStore

Program = CodeRequest | str
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Submitter:
    """A submitter puts programs on one queue."""

    def __init__(self, target: RedisTarget, hash: JobHash) -> None:
        self.target = target
        self._hash = hash
        self._suites: dict[int, SuiteStore] = {}  # by process: a forked child makes its own

    def __reduce__(self) -> Any:
        """Another process makes its own suite stores, as a forked child does."""
        return Submitter, (self.target, self._hash)

    def requests(self, programs: Iterable[Program]) -> list[CodeRequest]:
        """All are looked at before any is sent."""
        if isinstance(programs, str):
            raise RequestRefused("run_many takes a list of programs, not one; run takes one")
        return [_request(program) for program in programs]

    def suites(self) -> SuiteStore:
        """The suite of its judging jobs' cases, if there are many."""
        process = os.getpid()
        if process not in self._suites:
            made = SuiteStore(self.target, self._hash.queue, self._hash.patience)
            self._suites.setdefault(process, made)  # all threads use the first one
        return self._suites[process]

    def submit(
        self,
        program: Program | JudgeRequest,
        timeout: float | None,
        token: str | None,
        answer: Answer,
        *,
        queued: bool = False,
        share: str | None = None,
        began: float | None = None,
    ) -> Order:
        """Hand the job to the engine; the answer gets its outcome, or only that it is `queued`.

        The timeout counts from when the call `began`: None is now.
        """
        request: AnyRequest
        request = program if isinstance(program, JudgeRequest) else _request(program)
        check_timeout(timeout)
        if token is not None:
            check_token(token)
        share = self._hash.share if share is None else check_share(share)
        engine = client_engine(self.target)
        # A job that others may ask for by its token is the whole process's.
        client = engine.orders if token or queued else engine.client_for(answer)
        id = os.urandom(16).hex() if token is None else token
        began = engine.clock() if began is None else began
        deadline = math.inf if timeout is None else began + timeout
        order = Order(client, self._hash, id, request, began, deadline, share)
        (order.acks if queued else order.answers).append(answer)
        if tracing.on():
            order.span = _job_span(order, request)
        try:
            engine.submit(order, answer)
            return order
        except BaseException:  # a signal handler may raise anywhere
            self.abandon([order])
            raise

    def abandon(self, orders: Sequence[Order]) -> None:
        """Abandon these jobs: their callers wait no longer."""
        for order in orders:
            order.client.engine.post(order.client, partial(order.client.abandon, order))


def _job_span(order: Order, request: AnyRequest) -> tracing.Span:
    """A span from here to the job's outcome, the parent of all that workers do for the job."""
    about = tracing.message("create", order.hash.queue, order.id, language=request.language)
    if isinstance(request, JudgeRequest):
        about["penstock.cases"] = request.count
    return tracing.begun(f"job {order.hash.queue}", about, kind="producer")


def _request(program: Program) -> CodeRequest:
    if isinstance(program, str):
        return CodeRequest(code=program)
    if isinstance(program, CodeRequest):
        return program
    kind = type(program).__name__
    raise RequestRefused(f"a program is a CodeRequest, or its code as a str, not {kind}")


def check_timeout(timeout: float | None) -> None:
    """Refuse what is no time to wait; None is no limit."""
    if timeout is not None:
        check_number("timeout", timeout, above=True)


def check_token(token: str) -> str:
    """A token is a job's id in RQ, and part of its keys."""
    if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        raise SettingError("token", f"is 1 to 128 letters, digits, - and _, not {token!r:.60}")
    return token
