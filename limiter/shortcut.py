"""The shortcut: an event loop's own connection, for permits that need no waiting.

By way of the engine's thread a permit costs four wake-ups, by the shortcut two: the
server's and the loop's. What is asked in one tick goes out as one command a gate, and the
releases made meanwhile ride with it. It only saves time. Whatever is not granted at once
goes on with the engine under the same id, and so does everything when the connection
fails; what is still held at the next heartbeat is the engine's to renew (`direct`). A
shortcut never overtakes what the engine has yet to do at the gate.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from limiter import dialogue, replies
from limiter.commands import Command
from limiter.errors import GateError
from limiter.ledger import Ledger
from limiter.loop_wire import LoopWire
from limiter.permit import Lease
from limiter.wire import Wire
from limiter.wishes import Ask

if TYPE_CHECKING:
    from limiter.engine import Engine

log = logging.getLogger("penstock.limiter")

_WORTH_IT = 8  # asks after which a loop gets a connection of its own
_SILENCE = 1.0  # seconds without a reply after which the engine takes over


class _Sent(NamedTuple):
    ledger: Ledger
    turn: dialogue.Turn
    at: float


class _Due:
    """Of one gate, in this tick."""

    __slots__ = ("asks", "released")

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.released: list[tuple[str, int]] = []


class Shortcut:
    """One event loop's. A signal's handler may raise at any line of it."""

    def __init__(self, engine: "Engine", loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        self._missed = 0
        self._opening = False
        self._wire: LoopWire | None = None
        self._due: dict[Ledger, _Due] = {}
        self._sending: dict[Ledger, _Due] = {}
        self._flushing = False
        self._flight: deque[_Sent] = deque()
        self._granting: Ask | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        return self._wire is not None

    # For the loop's callers

    def ask(self, ledger: Ledger, ask: Ask) -> bool:
        """Take care of it, or leave it to the engine."""
        if self._wire is None:
            self._missed += 1
            if self._missed % _WORTH_IT == 0 and not self._opening:
                self._opening = True
                self._engine.post(self._open)
            return False
        if not self._may_pass(ledger):
            return False
        self._at(ledger).asks.append(ask)
        return True

    def release(self, ledger: Ledger, lease: Lease) -> bool:
        """The same for what was granted here and is held since."""
        if self._wire is None or not self._may_pass(ledger):
            return False
        if ledger.direct.held.pop(lease.id, None) is None:
            return False
        self._give_back(ledger, lease.id, lease.fence)
        return True

    def _may_pass(self, ledger: Ledger) -> bool:
        if ledger.at_rest and not self._engine.stopped:
            return True
        if self._due and not self._sending:  # a permit may be dropped in the midst of that
            self._flush()  # what goes by the engine goes behind it
        return False

    def _at(self, ledger: Ledger) -> _Due:
        due = self._due.get(ledger)
        if due is None:
            due = self._due[ledger] = _Due()
        if not self._flushing:
            self._loop.call_soon(self._flush)
            self._flushing = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, self._watch)
        return due

    def _give_back(self, ledger: Ledger, id: str, fence: int) -> None:
        ledger.direct.given[id] = fence
        self._at(ledger).released.append((id, fence))

    # The connection

    def _open(self) -> None:
        """On the engine's thread, which may wait for the server."""
        try:
            if not self._engine.contact.lost:
                # The engine has loaded the scripts, and sees to those that the server forgets.
                wire = Wire(self._engine.target, self._engine.contact.timeout, scripts={})
                try:
                    self._loop.call_soon_threadsafe(self._begin, wire)
                except RuntimeError:
                    wire.close()  # the loop is closed
        except (RedisError, OSError) as failure:
            log.debug("gates: no shortcut to %s: %s", self._engine.target, failure)
        finally:
            self._opening = False

    def _begin(self, wire: Wire) -> None:
        if self._wire is not None or self._engine.stopped or self._engine.contact.lost:
            return wire.close()
        try:
            self._wire = LoopWire(self._loop, wire, self._readable)
        except NotImplementedError:  # Windows' proactor
            wire.close()
        return None

    def end(self) -> None:
        """From any thread: the engine does everything from now on."""
        if self._wire is not None:
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                self._hang_up()  # the loop is closed: it reads no more

    def _end(self) -> None:
        if not (self._engine.stopped and self._flight):  # else what is granted yet is given back
            self._break()

    def _break(self) -> None:
        self._flushing = False
        self._hang_up()
        if (ask := self._granting) is not None:  # a signal's handler raised in the midst of it
            self._granting = None
            if ask.lease is not None and ask.id not in self._flight[0].ledger.leases:
                self._deliver(self._flight[0].ledger, ask, ask.lease)
            elif ask.lease is not None:
                ask.answer.settle()  # the engine has seen it, and renews it
            elif not ask.given_up:
                self._flight[0].ledger.direct.asked[ask.id] = ask
        sent = {ask.id for _, turn, _ in self._flight for ask in turn.asks}
        while self._flight:
            self._pass_on(*self._flight[0], None)
            self._flight.popleft()
        for pending in (self._sending, self._due):
            for ledger, due in [*pending.items()]:
                asks = [ask for ask in due.asks if not (ask.given_up or ask.id in sent)]
                ledger.direct.asked.update((ask.id, ask) for ask in asks)
                unsent = dialogue.Turn((), replies.ignore, asks, due.released)
                self._pass_on(ledger, unsent, 0.0, None)
                pending.pop(ledger, None)

    def _hang_up(self) -> None:
        if self._wire is not None:
            self._wire.hang_up()
            self._wire = None

    # Commands and replies

    def _flush(self) -> None:
        try:
            self._flushing = False
            now = self._engine.clock()
            commands = []
            self._sending, self._due = self._due, {}
            for ledger, due in self._sending.items():
                asks = [ask for ask in due.asks if not ask.given_up]
                ledger.direct.asked.update((ask.id, ask) for ask in asks)
                for turn in dialogue.give_and_take(ledger, asks, due.released):
                    self._flight.append(_Sent(ledger, turn, now))
                    commands.append(turn.command)
                if not ledger.direct.watched:
                    self._engine.watch(ledger)
            if commands:
                self._send(commands)
            self._sending = {}
        except OSError:
            self._break()
        except BaseException:
            self._break()
            raise

    def _send(self, commands: list[Command]) -> None:
        if self._wire is None:
            raise ConnectionError("it ended meanwhile")
        self._wire.send(commands)

    def _readable(self) -> None:
        try:
            for reply in self._wire.received() if self._wire is not None else ():
                self._digest(*self._flight[0], reply)
                self._flight.popleft()
            if self._engine.stopped:
                self._end()
        except OSError:
            self._break()
        except BaseException:
            self._break()
            raise

    @property
    def _patience(self) -> float:
        return min(_SILENCE, self._engine.contact.timeout)

    def _watch(self) -> None:
        """While something is on its way: the server may have fallen silent."""
        self._timer = None
        if self._flight or self._due:
            self._timer = self._loop.call_later(self._patience, self._watch)
        if self._wire is not None:
            self._readable()  # a loop that was blocked may have let a reply lie
        if self._flight and self._engine.clock() >= self._flight[0].at + self._patience:
            self._break()
        if self._due:
            self._flush()  # a signal's handler came in its way

    def _digest(self, ledger: Ledger, turn: dialogue.Turn, sent: float, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._pass_on(ledger, turn, sent, None)
            if not str(reply).startswith("NOSCRIPT"):
                raise ConnectionError(str(reply))
        elif self._engine.stopped or not dialogue.is_plain(ledger, turn, reply, sent):
            self._pass_on(ledger, turn, sent, reply)
        else:
            for id, _ in turn.released:
                ledger.direct.given.pop(id, None)
            for ask, fence, score in zip(turn.asks, reply[7::2], reply[8::2], strict=True):
                self._granted(ledger, ask, fence, score, sent)

    def _granted(self, ledger: Ledger, ask: Ask, fence: int, score: int, sent: float) -> None:
        self._granting = ask
        ours = ledger.direct.asked.pop(ask.id, None) is not None
        if ask.given_up:
            self._give_back(ledger, ask.id, fence)  # its cancellation may have come too early
        elif ours:
            ask.score = ask.score or str(score)
            ask.lease = ledger.new_lease(ask, fence, sent)
            self._deliver(ledger, ask, ask.lease)
        self._granting = None

    def _deliver(self, ledger: Ledger, ask: Ask, lease: Lease) -> None:
        ask.answer.outcome = lease
        ledger.direct.held[ask.id] = lease
        if not ledger.direct.watched:  # the engine has looked since this was sent, and saw nothing
            self._engine.watch(ledger)
        ask.answer.settle()

    def _pass_on(self, ledger: Ledger, turn: dialogue.Turn, sent: float, reply: Any) -> None:
        """The engine reads the reply, or asks again where there is none."""
        try:
            self._engine.take_over(ledger, turn, sent, reply)
        except GateError as refusal:
            self._refuse(ledger, turn, refusal)

    def _refuse(self, ledger: Ledger, turn: dialogue.Turn, refusal: GateError) -> None:
        """The engine has ended: nobody would renew what is granted now."""
        for ask in turn.asks:
            if ledger.direct.asked.pop(ask.id, None) is not None:
                ask.answer.outcome = refusal
                ask.answer.settle()
        if turn.asks and self._wire is not None:
            cancel = ledger.commands.cancel("cancelled", [ask.id for ask in turn.asks])
            self._flight.append(_Sent(ledger, dialogue.Turn(cancel, replies.ignore), 0.0))
            self._send([cancel])
