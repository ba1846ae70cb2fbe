"""The gate: at most so many at once, and at most so many per second, over a whole cluster.

Invariant, for every name, at every instant of the server's clock, over all processes: no grant
takes the living leases above the limit. Over any window of t seconds there are at most
`burst + rate * t` grants.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from ground import SettingError
from ground.keys import check_name, in_run
from ground.redis.answers import LoopAnswer
from ground.redis.connect import AnyRedis, target_of
from ground.tasks import Body
from limiter.client import GateClient
from limiter.ledger import Ledger, LoopAsk
from limiter.permit import Permit, Report, SyncPermit, Wait, receipt_of
from limiter.status import (
    Change,
    GateStatus,
    LeaseStatus,
    check_configured,
    read_revoked,
    read_status,
)
from limiter.sync_gate import SyncGate
from limiter.terms import Adaptive, Cost, Manner, Terms, changes

log = logging.getLogger("penstock.limiter")


class Hold:
    """A hold has a permit for the length of one `with` or one `async with`; `gate.hold()` makes it.

    If the permit is lost, the body of an `async with` is cancelled and the block raises
    `PermitLost`. The body of a `with` cannot be interrupted, so the block raises at its end.
    """

    def __init__(
        self,
        gate: "Gate",
        timeout: float | None,
        lane: int,
        cost: Cost | None = None,
        share: str = "",
    ) -> None:
        self._gate = gate
        self._timeout = timeout
        self._lane = lane
        self._cost = cost
        self._share = share
        self._permit: Permit | SyncPermit | None = None
        self._body: Body | None = None  # of an `async with`

    async def __aenter__(self) -> Permit:
        permit = await self._gate.acquire(
            timeout=self._timeout, lane=self._lane, cost=self._cost, share=self._share
        )
        self._keep(permit)
        self._body = Body(permit.check)
        permit.on_lost = self._body.cancel
        if permit.lost:  # before `on_lost` was set, or just now: no cancellation may follow
            self._end(None)
        return permit

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)

    def __enter__(self) -> SyncPermit:
        permit = self._gate.sync.acquire(
            timeout=self._timeout, lane=self._lane, cost=self._cost, share=self._share
        )
        self._keep(permit)
        return permit

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kind)

    def _keep(self, permit: Permit | SyncPermit) -> None:
        """Refuse a second block beside the first: this would forget the first one's permit, which
        would stay."""
        if self._permit is not None:
            permit.unreported()
            permit.release()
            raise RuntimeError(
                f"gate {self._gate.name!r}: a hold is for one block at a time, and this one has a "
                "permit; call `hold()` for each block"
            )
        self._permit = permit

    def _end(self, kind: type[BaseException] | None) -> None:
        """Release the permit; raise `PermitLost` if it was lost and the body has no other error."""
        permit, self._permit = self._permit, None
        if permit is None:
            return
        permit.on_lost = None
        if kind is not None:
            permit.unreported()
        try:
            if self._body is not None:
                self._body.__exit__(kind)
            elif kind is None:
                permit.check()
        finally:
            permit.release()


F = TypeVar("F", bound=Callable[..., Any])


def limited(gate: str, hold: Callable[[], Hold], function: F) -> F:
    """Wrap `function`, so that each call has a permit of that gate; coroutine functions as well."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"gate {gate!r}: `limited` cannot hold a permit for {function!r}: a call "
            "of a generator function ends before its body begins; use `with` inside it"
        )
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            async with hold():
                return await function(*args, **kwargs)

        return call_async  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with hold():
            result = function(*args, **kwargs)
            if inspect.iscoroutine(result):  # its wrapper hides that it is a coroutine function
                result.close()
                raise TypeError(
                    f"gate {gate!r}: `limited` cannot hold a permit for {function!r}: it returns a "
                    "coroutine, which runs after the call; decorate the coroutine function itself"
                )
            return result

    return call  # type: ignore[return-value]


class Gate:
    """A gate has these methods, whether it is a `TokenBucket` or a `StartingGate`; `existing_gate`
    opens one by name.

    Its methods are for coroutines; `gate.sync` has the same ones for threads.
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str,
        terms: Terms,
        manner: Manner,
        *,
        run: str | None = None,
    ) -> None:
        try:
            self.name = check_name(in_run(run, name) if run else name, "a gate")
        except ValueError as refusal:
            raise SettingError("name", str(refusal)) from None
        self.target = target_of(redis)
        self.terms = terms
        self._client = GateClient(self.target, self.name, terms, manner)
        self._held: dict[int, list[Hold]] = {}  # by the task or thread that entered the gate

    # Coroutines

    async def acquire(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109
        lane: int = 0,
        ticket: str = "",
        orphan_hold: float | None = None,
        cost: Cost | None = None,
        share: str = "",
    ) -> Permit:
        """Wait for a permit, first come, first served; give it back with `permit.release()`.

        timeout      seconds; None waits without a limit, 0 is one try
        lane         priority: lower lanes are served before higher ones
        ticket       `permit.ticket` of an earlier permit: wait at that one's place in line
        orphan_hold  as on the constructor, for this permit alone
        cost         how many of the limit and of the rate it takes; at a gate with several
                     `rates`, what it takes of each: `{"tokens": 900}`; what is not named is 1
        share        on whose account it waits: in a lane, shares that wait take turns by weight

        Raises `LimitTimeout`, or `GateUnavailable` if Redis does not answer.
        """
        client = self._client
        ask = client.new_ask(LoopAsk, timeout, ticket, lane, orphan_hold, cost, share)
        try:
            client.ask(ask)
            if timeout is None:
                await ask.future
            else:
                async with asyncio.timeout(client.seconds_left(ask)):
                    await ask.future
            return Permit(ask.taken())
        except TimeoutError:
            client.abandon(ask)
            raise client.silent() from None
        except BaseException:
            client.abandon(ask)
            raise

    async def try_acquire(self, *, cost: Cost | None = None, share: str = "") -> Permit | Wait:
        """A permit if one is free and nobody waits; else the seconds until asking may help."""
        client = self._client
        ask = client.new_ask(LoopAsk, cost=cost, share=share, joins=False)
        try:
            client.ask(ask)
            await ask.future
            outcome = ask.taken()
            return outcome if isinstance(outcome, Wait) else Permit(outcome)
        except BaseException:
            client.abandon(ask)
            raise

    async def status(self) -> GateStatus:
        """Read what the gate allows, who is in, who waits, and what it has counted."""
        return read_status(self.name, await self._called(lambda ledger: ledger.commands.status()))

    async def configure(
        self,
        *,
        limit: int | Adaptive | None = None,
        rate: float | Adaptive | None = None,
        burst: int | None = None,
        min: float | None = None,
        max: float | None = None,
        adapt: bool | None = None,
        rates: Mapping[str, float] | None = None,
        bursts: Mapping[str, int] | None = None,
        passing: int | None = None,
        weights: Mapping[str, float | None] | None = None,
    ) -> None:
        """Change the gate for everyone at once. A lowered limit revokes nothing.

        A number for `limit` or `rate` pins a gate that adapts. `adapt=True` frees it, and makes
        one that never adapted begin from where it stands. `min` and `max` are its bounds.

        `rates` and `bursts` change amounts that the gate has beside its rate. Others pass
        a first one in line with a big cost until they have taken `passing` times as much of the
        limit: 4 by default, and 0 keeps the order exact.

        `weights` are those of shares, and count at once: `{"training": 3, "*": 1}`. None takes a
        share's own weight away, `*` stands for all without one, '' for who waits without a share.
        """
        change = Change(limit, rate, burst, min, max, adapt, rates, bursts, passing, weights)
        wanted = change.fields(await self.status() if change.is_relative else None)
        check_configured(await self._called(lambda ledger: ledger.commands.configure(wanted)))

    async def pause(self) -> None:
        """Grant nothing until `resume`; waiters keep their places, holders their permits."""
        await self._called(lambda ledger: ledger.commands.configure(changes(paused=True)))

    async def resume(self) -> None:
        """Grant again, beginning with those who waited."""
        await self._called(lambda ledger: ledger.commands.configure(changes(paused=False)))

    async def free(self, permit: str, fence: int, report: Report = Report.NOTHING) -> None:
        """Give back a permit that any process left in Redis by `permit.entrust()`.

        Harmless when repeated. `report` is what it tells a gate that adapts.
        """
        receipt = receipt_of(fence, report)
        await self._called(lambda ledger: ledger.commands.give_back(permit, receipt))

    async def revoke(self, permit: str) -> LeaseStatus:
        """Take a permit from its holder at once, and say who that was.

        For a holder that is dead, or hangs. If it lives, it learns that its permit is lost, as
        after a lease's end. Raises `UnknownPermit`.
        """
        reply = await self._called(
            lambda ledger: ledger.commands.revoke(permit, ledger.engine.new_id())
        )
        return read_revoked(self.name, permit, reply)

    # Threads

    @property
    def sync(self) -> SyncGate:
        """A face of the gate for code that blocks."""
        return SyncGate(self._client)

    # Both

    def hold(
        self,
        *,
        timeout: float | None = None,
        lane: int = 0,
        cost: Cost | None = None,
        share: str = "",
    ) -> Hold:
        """A permit for the length of a `with` or `async with` block."""
        return Hold(self, timeout, lane, cost, share)

    def limited(self, function: F) -> F:
        """Decorate a function or coroutine function with `@gate.limited`: each call holds a
        permit."""
        return limited(self.name, self.hold, function)

    async def __aenter__(self) -> Permit:
        hold = Hold(self, None, 0)
        permit = await hold.__aenter__()
        task = cast(asyncio.Task[Any], asyncio.current_task())
        if id(task) not in self._held:
            task.add_done_callback(self._forget)
        self._held.setdefault(id(task), []).append(hold)
        return permit

    async def __aexit__(self, *failure: Any) -> None:
        task = cast(asyncio.Task[Any], asyncio.current_task())
        hold = self._leaving(id(task))
        if id(task) not in self._held:
            task.remove_done_callback(self._forget)
        await hold.__aexit__(*failure)

    def __enter__(self) -> SyncPermit:
        hold = Hold(self, None, 0)
        permit = hold.__enter__()
        self._held.setdefault(threading.get_ident(), []).append(hold)
        return permit

    def __exit__(self, *failure: Any) -> None:
        self._leaving(threading.get_ident()).__exit__(*failure)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.target}>"

    def __getstate__(self) -> dict[str, Any]:
        """The gate without its permits: those are of this process."""
        return self.__dict__ | {"_held": {}}

    def _leaving(self, holder: int) -> Hold:
        holds = self._held.get(holder)
        if not holds:
            raise RuntimeError(
                f"gate {self.name!r} is left by another task or thread than entered it; "
                "use `hold()` or `acquire()` where they differ"
            )
        hold = holds.pop()
        if not holds:
            del self._held[holder]
        return hold

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        """The task has ended inside the gate: a generator of its own left that by another task, as
        asyncio closes one that was not read to its end. Its permits would stay for good."""
        for hold in self._held.pop(id(task), []):
            hold.__exit__(RuntimeError)
            log.warning(
                "gate %r: %s ended without leaving it, and its permit is given back; use `hold()` "
                "or `acquire()` where another task leaves", self.name, task.get_name(),
            )  # fmt: skip

    async def _called(self, command: Callable[[Ledger], Any]) -> Any:
        answer = LoopAnswer()
        self._client.call(command, answer)
        await answer.future
        return answer.taken()
