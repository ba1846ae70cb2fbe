"""A permit is in its holder's hands until it is released, lost, or entrusted to Redis."""

import logging
import time
import weakref
from collections.abc import Callable, Mapping
from typing import ClassVar, Literal, Protocol

from ground import SettingError
from ground.lua import as_text
from ground.numbers import check_number, check_whole, is_number, shown
from ground.redis.answers import Answer, LoopAnswer, ThreadAnswer
from limiter.errors import GateError, PermitLost
from limiter.terms import REQUESTS, Cost, cost_text

log = logging.getLogger("penstock.limiter")

TRUSTED = 5 / 6  # of a lease: the rest is the margin for clock drift and this process's own delay


class Report(str):
    """A report tells a gate that adapts how the service behind it did; other gates ignore it."""

    __slots__ = ()

    SUCCESS: ClassVar["Report"]
    NOTHING: ClassVar["Report"]
    OVERLOADED: ClassVar["Report"]

    @staticmethod
    def throttled(retry_after: float | None = None) -> "Report":
        """The service refused: 429, 503 or the like, and asked for so many seconds of patience."""
        if retry_after is None:
            return Report("t")
        if not (is_number(retry_after) and retry_after >= 0):  # a longer one than an hour is cut
            said = f"must be 0 or more seconds, not {shown(retry_after)}"
            raise SettingError("retry_after", said)
        return Report(f"t{int(min(retry_after, 3600.0) * 1_000_000)}")


Report.SUCCESS, Report.NOTHING, Report.OVERLOADED = Report(), Report("-"), Report("o")


def with_cost(term_us: int, charge: Mapping[str, int] | None) -> int | str:
    """A term as the scripts read it, and behind it the cost of a permit that has one."""
    return term_us if charge is None else f"{term_us} {cost_text(charge)}"


def receipt_of(fence: int, report: Report) -> int | str:
    """The words by which a script gives back a permit that is known by its fence alone."""
    check_whole("fence", fence, 0, 2**53)
    return f"{fence} {report}" if report else fence


class Lease:
    """A lease is the engine's part of a permit: enough to renew it, and to know when it is over."""

    __slots__ = (
        "charge", "deadline", "fence", "handed_in", "holder", "id", "keeper", "lost", "place",
        "report", "settled", "stays_us", "term_us", "turn", "waited",
    )  # fmt: skip

    def __init__(
        self,
        keeper: "Keeper",
        id: str,
        fence: int,
        term_us: int,
        deadline: float,
        waited: float,
        place: int | bytes | str,
        charge: dict[str, int] | None = None,
    ) -> None:
        self.keeper = keeper
        self.id = id
        self.fence = fence
        self.term_us = term_us
        self.deadline = deadline
        self.waited = waited
        self.place = place  # in line, as the script says it
        self.lost = False
        self.handed_in = False
        self.report = Report.SUCCESS
        # The lane and share that it was waited for in, which paid for it.
        self.turn: tuple[int, str] | None = None
        self.charge = charge  # what it costs, by amounts; None of a plain permit
        self.settled = ""  # what goes back with its release, or is charged then
        self.stays_us = 0  # after its release, since what it was for may still run
        self.holder: weakref.ref[HeldPermit] | None = None

    @property
    def receipt(self) -> int | str:
        """The permit's fence, and what its release reports and settles."""
        if self.stays_us:
            return f"{self.fence} {self.report} +{self.stays_us} {self.settled}"
        if self.settled:
            return f"{self.fence} {self.report} {self.settled}"
        return f"{self.fence} {self.report}" if self.report else self.fence

    @property
    def term(self) -> int | str:
        """The term for which it is renewed, in microseconds, and its cost."""
        return with_cost(self.term_us, self.charge)

    def notify_holder(self) -> None:
        """Call the holder's `on_lost`: the permit is lost."""
        permit = self.holder() if self.holder else None
        if permit is not None and permit.on_lost is not None:
            try:
                permit.on_lost()
            except Exception:  # the holder's code, on the engine's thread
                log.exception("gates: `on_lost` of permit %s failed", self.id)


class Keeper(Protocol):
    """A keeper keeps leases: it is the gate's unit in this process."""

    name: str

    def hand_back(self, lease: Lease) -> None: ...
    def abandon_lease(self, lease: Lease) -> None: ...
    def hand_back_and_answer(self, lease: Lease, answer: Answer) -> None: ...
    def leave_in_redis(self, lease: Lease) -> None: ...
    def renew_now(self, lease: Lease, answer: Answer) -> None: ...
    def renew_again(self, lease: Lease, ends_at: float) -> None: ...


class HeldPermit:
    """The right to be one of those in flight, until `release()` or the lease's end.

    The process renews the lease for as long as it lives. `lost` says at any
    moment, by this process's own clock, whether the lease has ended.
    """

    __slots__ = ("__weakref__", "_lease", "_on_lost", "_released")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._on_lost: Callable[[], None] | None = None
        self._released = False  # last: a signal's handler may raise at any line of this

    @property
    def on_lost(self) -> Callable[[], None] | None:
        """Have this called once, on another thread, when the permit is found lost."""
        return self._on_lost

    @on_lost.setter
    def on_lost(self, call: Callable[[], None] | None) -> None:
        self._on_lost = call
        self._lease.holder = weakref.ref(self)  # last: from now on it may be called

    @property
    def id(self) -> str:
        """The id of this permit in Redis, as `ZRANGE …:leases` shows it."""
        return self._lease.id

    @property
    def fence(self) -> int:
        """A number that grows with every grant of the gate: for what the permit protects."""
        return self._lease.fence

    @property
    def waited(self) -> float:
        """Seconds between asking and getting."""
        return self._lease.waited

    @property
    def ticket(self) -> str:
        """The permit's place in line: `acquire(ticket=…)` asks again from there, before who came
        later."""
        return as_text(self._lease.place)

    @property
    def lost(self) -> bool:
        """Whether the lease ended while the permit was held."""
        lease = self._lease
        return not self._released and (lease.lost or time.monotonic() >= lease.deadline)

    def check(self) -> None:
        """Raise `PermitLost` if it is lost."""
        if self.lost:
            raise PermitLost(self._lease.keeper.name, self.id)

    def _renewable(self) -> None:
        if self._released:
            raise GateError(
                f"gate {self._lease.keeper.name!r}: permit {self.id} was released already"
            )
        self.check()

    def throttled(self, retry_after: float | None = None) -> None:
        """The service refused the request, by 429, 503 or the like; the release reports so.

        `retry_after` are the seconds that the service asked for. Release the permit, then wait.
        """
        self.report(Report.throttled(retry_after))

    def overloaded(self) -> None:
        """The request timed out, or failed on the service's side; the release reports so."""
        self.report(Report.OVERLOADED)

    def unreported(self) -> None:
        """The request says nothing of the service: its release counts as no success."""
        if not self._lease.report:
            self.report(Report.NOTHING)

    def settle(self, actual: Cost) -> None:
        """Say what the request has cost in the end. With the release, each amount per second gets
        back what was charged too much, or is charged what was missing. What is not named cost what
        was said.

        A number is for a gate without named amounts. The permit must have been acquired with a
        cost. It counts in the limit as acquired, until it is released.
        """
        charge = self._lease.charge
        if charge is None:
            raise SettingError("cost", "was not given when the permit was acquired")
        actual = actual if isinstance(actual, Mapping) else {REQUESTS: actual}
        for name, count in actual.items():
            if name != REQUESTS and name not in charge:
                raise SettingError("cost", f"the permit was not acquired with {name!r}")
            check_whole("cost", count, 0)
        self._lease.settled = " ".join(
            f"{name}={charge.get(name, 1) - int(count)}" for name, count in actual.items()
        )
        if self._lease.turn is not None:
            was = charge | {name: int(count) for name, count in actual.items()}
            parts = (*self._lease.turn, cost_text(charge), cost_text(was))
            self._lease.settled += "".join(f"|{part}" for part in parts)

    def report(self, report: Report) -> None:
        """The release reports this in place of a success."""
        self._lease.report = report

    def hand_in(self) -> None:
        """A script that gets its id will give it up: renew it no more from here.

        Release it afterwards all the same, because the script may never have run.
        """
        self._lease.handed_in = True

    def release(self) -> None:
        """Give it back. Never blocks, never fails, harmless when repeated.

        At a gate that adapts this counts as a success, unless something else was reported.

        A thread sends it at once, a coroutine as soon as its event loop runs. If the loop is
        blocked, it is sent within two seconds.

        In a forked child this does nothing: the permit is its parent's.
        """
        if not self._released:
            self._lease.keeper.hand_back(self._lease)
            self._released = True  # last: if a signal handler raised, `__del__` does it again

    def __bool__(self) -> Literal[True]:
        return True

    def __del__(self) -> None:
        if not getattr(self, "_released", True):
            self.unreported()
            self._lease.keeper.abandon_lease(self._lease)
            self._released = True

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self.lost else "held"
        return f"<{type(self).__name__} {self.id} of gate {self._lease.keeper.name!r}, {state}>"


class Permit(HeldPermit):
    """A permit taken by a coroutine."""

    __slots__ = ()

    async def renew(self) -> None:
        """Have the lease renewed now, and know that it was; else raise `PermitLost`."""
        self._renewable()
        answer = LoopAnswer()
        self._lease.keeper.renew_now(self._lease, answer)
        await answer.future
        answer.taken()
        self.check()

    async def give_back(self, after: float = 0.0) -> None:
        """Release it, and return when Redis knows: for a process that ends right after.

        With `after` it counts for so many more seconds, even if this process ends: what it was for
        may still run. What it reports counts at once.
        """
        if not self._released:
            check_number("after", after)
            self._lease.stays_us = int(after * 1_000_000)
            answer = LoopAnswer()
            self._lease.keeper.hand_back_and_answer(self._lease, answer)
            self._released = True  # last, as `release` does
            await answer.future
            answer.taken()

    async def entrust(self, seconds: float) -> None:
        """Leave it in Redis for so long, even if this process dies.

        From now on nothing renews it. Only `gate.free(permit.id, permit.fence)`, in any process,
        gives it back earlier. If this raises, this process still has it, but perhaps for no longer
        than these seconds.
        """
        check_number("seconds", seconds, above=True)
        lease = self._lease
        ends_at = time.monotonic() + seconds * TRUSTED
        usual_us, lease.term_us = lease.term_us, int(seconds * 1_000_000)
        try:
            await self.renew()
        except BaseException:
            lease.term_us = usual_us
            lease.keeper.renew_again(lease, ends_at)
            raise
        self._released = True
        lease.keeper.leave_in_redis(lease)


class SyncPermit(HeldPermit):
    """A permit taken by a thread."""

    __slots__ = ()

    def renew(self) -> None:
        """Have the lease renewed now, and know that it was; else raise `PermitLost`."""
        self._renewable()
        answer = ThreadAnswer()
        self._lease.keeper.renew_now(self._lease, answer)
        answer.wait(None)
        answer.taken()
        self.check()


class Wait(float):
    """A `Wait` is the answer of `try_acquire` without a permit: seconds until asking may help.

    It is false, so that `if permit := gate.sync.try_acquire():` reads as it should.
    """

    __slots__ = ()

    def __bool__(self) -> Literal[False]:
        return False
