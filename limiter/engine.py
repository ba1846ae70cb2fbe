"""The engine: one thread of a process that talks to one Redis about all its gates.

Callers on any thread or event loop post what they want and wait for an answer.
The engine gathers what was posted, sends it as one pipeline, and hands out what
came back: a hundred acquires cost one round trip. It also renews the process's
leases, so that neither a blocked event loop nor a long computation loses them.
"""

import contextlib
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

from redis.exceptions import RedisError

from ground import RedisTarget
from limiter import dialogue
from limiter.answers import Answer, deliver
from limiter.commands import Command, nudge
from limiter.deadlines import Deadlines
from limiter.errors import GateError, GateUnavailable
from limiter.inbox import Inbox
from limiter.ledger import Ledger
from limiter.permit import Lease
from limiter.wire import FINAL, PASSING, Wire
from limiter.wishes import Ask

log = logging.getLogger("penstock.limiter")

_LONGEST_PAUSE = 1.0
_FAREWELL = 2.0  # seconds that an ending process spends on giving its permits back


class Engine:
    """See the module."""

    def __init__(self, target: RedisTarget) -> None:
        self.target = target
        self.process = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._token, self._numbers = uuid.uuid4().hex[:16], itertools.count(1)
        self.clock = time.monotonic
        self.sent_at = self.clock()
        self.stopped = False
        self._posted: SimpleQueue[tuple[Callable[[], None], Ledger | None] | None] = SimpleQueue()
        # Kept by their gates and permits, and by us while there is something to do: however
        # many gates come and go, a turn costs what those in use cost.
        self._ledgers: WeakValueDictionary[str, Ledger] = WeakValueDictionary()
        self._busy: dict[Ledger, None] = {}
        self._guard = threading.Lock()
        self._deadlines = Deadlines()
        self._timeout = 5.0
        self._wire: Wire | None = None
        self._down_since: float | None = None
        self._trouble: BaseException | None = None
        self._pause = 0.0
        self._retry_at = 0.0
        self._inbox: Inbox | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-gates", daemon=True)
        self._thread.start()

    # For callers, from any thread

    def post(self, deed: Callable[[], None], ledger: Ledger | None = None) -> None:
        """Have the engine's thread do something, soon; with the ledger that it changes."""
        self._posted.put((deed, ledger))

    def new_id(self) -> str:
        """No other permit's, anywhere. Asking the system for randomness each time would cost
        more, and let our thread send a release without the acquire that is to ride with it."""
        return f"{self._token}:{next(self._numbers):x}"

    def ledger(self, name: str, make: Callable[["Engine"], Ledger]) -> Ledger:
        """The ledger of a gate; the first to ask says on what terms."""
        with self._guard:
            ledger = self._ledgers.get(name)
            if ledger is None:
                ledger = make(self)
                self._ledgers[name] = ledger
                if ledger.lease / 6 < self._timeout:
                    # One blocked command must not outlast a lease's margin.
                    self._timeout = ledger.lease / 6
                    self.post(self._disconnect)
            return ledger

    def request(self, deed: Callable[[], None], ledger: Ledger | None = None) -> None:
        """The same for who waits for an answer: refused when none would come."""
        self._posted.put((deed, ledger))
        if self.stopped:  # set before the last look at what was posted
            raise GateError(f"{self.target}: the process is ending, its gates are closed")

    def ask(self, ledger: Ledger, ask: Ask, *, join: bool) -> None:
        def deed() -> None:
            ledger.ask(ask, join=join)
            self._deadlines.add(ledger, ask)

        self.request(deed, ledger)

    def abandon(self, ledger: Ledger, ask: Ask) -> None:
        self.post(lambda: ledger.abandon(ask), ledger)

    def release(self, ledger: Ledger, lease: Lease) -> None:
        if not self.stopped:
            self.post(lambda: ledger.release(lease), ledger)

    def entrusted(self, ledger: Ledger, lease: Lease) -> None:
        """It lives on in Redis without this process."""
        self.post(lambda: ledger.forget_lease(lease), ledger)

    def give_back(self, ledger: Ledger, lease: Lease, answer: Answer) -> None:
        self.request(lambda: ledger.give_back(lease, answer), ledger)

    def renew(self, ledger: Ledger, lease: Lease, answer: Answer) -> None:
        self.request(lambda: ledger.renew(lease, answer), ledger)

    def stop(self) -> None:
        """Give every permit back and end the thread. What waits is refused."""
        if not self.stopped:
            self.stopped = True
            self._posted.put(None)
            self._thread.join(_FAREWELL + 1)

    # The thread

    def _run(self) -> None:
        try:
            while self._gather():
                self._exchange()  # before anybody's time is up: a timeout of 0 is one try
                self._deadlines.pass_by(self.clock())
                self._hand_out()
            self._farewell()
        except BaseException:
            log.exception("gates: the engine failed; everyone who waits is refused")
            self.stopped = True
            self._refuse_rest("internal error, see the log")
            raise
        finally:
            self.stopped = True
            self._end_inbox()
            self._disconnect()

    def _gather(self) -> bool:
        """Wait for something to do, then do all that was posted; False at the end."""
        try:
            posted = self._posted.get(timeout=self._idle_for())
            while posted is not None:
                self._do(*posted)
                posted = self._posted.get_nowait()
        except Empty:
            return True
        return False

    def _do(self, deed: Callable[[], None], ledger: Ledger | None) -> None:
        if ledger is not None:
            self._busy[ledger] = None
        deed()

    def _idle_for(self) -> float | None:
        due = min((ledger.next_due() for ledger in self._busy), default=float("inf"))
        if self._down_since is not None:
            due = self._retry_at if due < float("inf") else due
        due = min(due, self._deadlines.first)
        if due == float("inf"):
            return None
        return min(max(0.0, due - self.clock()), threading.TIMEOUT_MAX)

    def _exchange(self) -> None:
        """One pipeline with everything that is due; on failure it stays due."""
        now = self.clock()
        if self._down_since is not None and now < self._retry_at:
            self._give_up(now)
            return
        work = [(ledger, pair) for ledger in self._busy for pair in dialogue.exchange(ledger, now)]
        if not work:
            return
        try:
            replies = self._converse([command for _, (command, _) in work])
        except PASSING as failure:
            if isinstance(failure, FINAL):
                self._refuse_all(failure)
            self._fail(failure)
        except RedisError as refusal:
            self._refuse_all(refusal)
            self._fail(refusal)
        else:
            self._down_since, self._pause = None, 0.0
            self._digest(work, replies)
            for ledger in self._busy:
                dialogue.exchanged(ledger, now)
                self._listen(ledger)

    def _converse(self, commands: list[Command]) -> list[Any]:
        wire = self._connected()
        self.sent_at = self.clock()
        return wire.converse(commands)

    def _digest(
        self, work: list[tuple[Ledger, tuple[Command, dialogue.Digest]]], replies: list[Any]
    ) -> None:
        refused: dict[Ledger, RedisError] = {}
        for (ledger, (_, digest)), reply in zip(work, replies, strict=True):
            if isinstance(reply, RedisError):
                refused[ledger] = reply
            else:
                digest(reply)
        # Afterwards, so that no reply speaks of who was refused already.
        for ledger, reply in refused.items():
            ledger.refuse(GateError(f"gate {ledger.name!r}: {self.target} answered: {reply}"))

    def _fail(self, failure: BaseException) -> None:
        now = self.clock()
        self._disconnect()
        self._trouble = failure
        if self._down_since is None:
            self._down_since = now
            log.warning("gates: Redis at %s does not answer: %s", self.target, failure)
        # No longer than a command may take: what is lost is noticed within a lease's margin.
        self._pause = min(_LONGEST_PAUSE, self._timeout, max(0.02, self._pause * 2))
        self._retry_at = now + self._pause
        for ledger in self._busy:
            ledger.beat_now()
        self._give_up(now)

    def _give_up(self, now: float) -> None:
        for ledger in self._busy:
            ledger.give_up(now, self._down_since or now, str(self.target), self._trouble)

    def _refuse_all(self, refusal: BaseException) -> None:
        for ledger in self._busy:
            ledger.refuse(GateUnavailable(ledger.name, str(self.target), refusal))

    def _hand_out(self) -> None:
        for ledger in self._busy:
            if ledger.outcomes:
                outcomes, ledger.outcomes = ledger.outcomes, []
                orphans: list[Answer] = deliver(outcomes)
                for orphan in orphans:
                    if isinstance(orphan.outcome, Lease):
                        ledger.release(orphan.outcome)
        for ledger in [ledger for ledger in self._busy if ledger.idle]:
            del self._busy[ledger]

    def _listen(self, ledger: Ledger) -> None:
        """See that somebody reads the inbox of a gate we wait at."""
        if not ledger.waiting:
            return
        if self._inbox is None:
            self._inbox = Inbox(self.target, self._received)
        reading = self._inbox.listen(ledger.commands.inbox, ledger)
        if reading is not None:
            try:
                self._connected().converse(nudge(reading))
            except PASSING as failure:
                self._fail(failure)

    def _end_inbox(self) -> None:
        """Its thread ends by itself when Redis is gone, and with the process when it is frozen."""
        if self._inbox is None:
            return
        reading = self._inbox.stop()
        if self._down_since is None:
            with contextlib.suppress(RedisError, *PASSING):
                if reading is not None:
                    self._connected().converse(nudge(reading))
                self._inbox.join(_FAREWELL)

    def _received(self, ledger: Ledger, letters: list[dict[bytes, bytes]]) -> None:
        """Called by an inbox's thread."""

        def deed() -> None:
            for letter in letters:
                dialogue.read_letter(ledger, letter)

        self.post(deed, ledger)

    def _connected(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self.target, self._timeout)
        return self._wire

    def _disconnect(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def _farewell(self) -> None:
        """The last exchange: permits go back at once instead of at their leases' ends."""
        for ledger in self._busy:
            ledger.close(GateError(f"gate {ledger.name!r}: the process is ending"))
        self._timeout = min(self._timeout, _FAREWELL)
        self._exchange()
        self._refuse_rest("the process is ending")

    def _refuse_rest(self, why: str) -> None:
        with contextlib.suppress(Empty):
            while True:
                if posted := self._posted.get_nowait():
                    self._do(*posted)
        for ledger in self._busy:
            ledger.refuse(GateError(f"gate {ledger.name!r}: {why}"))
        self._hand_out()
