"""A shift of a worker: claim, run, finish, until it is stopped.

    park at empty queues → claim what there is room for → one task per job → Finisher

A worker claims a job only if it can start it at once. Until then the job waits in its queue
or, with a gate, in the gate's line.
"""

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.exceptions import RedisError
from rq.utils import as_text
from rq.worker import BaseWorker

from ground import tracing
from ground.backoff import backoff
from ground.complaint import Complaint
from ground.redis.async_connection import AsyncConnection
from ground.redis.connect import target_of
from ground.redis.connection import is_refused, trouble
from limiter.commands import GateCommands
from worker.allowed import Allowed
from worker.concurrent import traced
from worker.concurrent.commands import MOST, SCRIPTS, Claim, WorkCommands, read_claim
from worker.concurrent.finish import Finisher
from worker.concurrent.parking import GateWaiter, ParkingLot, gate_of
from worker.concurrent.perform import Performer
from worker.concurrent.rq_job import claimed_job
from worker.concurrent.running import ClaimedJob, Outcome, RunningJobs, WorkerDied
from worker.concurrent.threads import Threads
from worker.judging.reading import close_readers_here
from worker.queue.dropped_jobs import REASONS
from worker.run.choice import close_sandboxes_here
from worker.run.turn import Room
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")

DEFAULT, RANDOM, ROUND_ROBIN = "default", "random", "round_robin"


class QueueOrder:
    """The order of queues: by default the first one gives all it has; otherwise each gives one job
    per round."""

    def __init__(self, queues: list[str], strategy: str) -> None:
        self._queues = queues
        self._strategy = strategy

    @property
    def one_each(self) -> bool:
        return self._strategy != DEFAULT and len(self._queues) > 1

    def __iter__(self) -> Iterator[str]:
        queues = [*self._queues]
        if self._strategy == RANDOM:
            random.shuffle(queues)
        return iter(queues)

    def gave(self, queue: str) -> None:
        if self._strategy == ROUND_ROBIN:
            at = self._queues.index(queue) + 1
            self._queues = self._queues[at:] + self._queues[:at]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one claim at its queue."""

    queue: str
    started: int  # jobs
    left: bool  # jobs wait there
    suspended: bool  # by `rq suspend`
    paused: bool  # this queue; the others continue
    shut: bool  # the gate has no permit

    @property
    def is_empty(self) -> bool:
        return not (self.left or self.suspended or self.shut)


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one look for jobs."""

    took: int = 0  # jobs claimed and started
    left: bool = False  # jobs wait, or may wait: not every queue was asked
    suspended: bool = False
    paused: frozenset[str] = frozenset()


_AT_ONCE = 128  # jobs in one claim: Redis works on the next claim while we start these
# Seconds until a worker that is held looks again, if nothing wakes it: `rq resume` deletes a key
# and tells nobody, and a message to a worker is lost while its connection is away.
_HELD_FOR = 5.0
_AWAY_FOR, _REFUSED_FOR = 1.0, 5.0  # longest pauses between claims that fail, in seconds


class Shift:
    """A shift runs on the worker's event loop; only `call` is for other threads."""

    def __init__(
        self,
        worker: BaseWorker,
        settings: WorkerSettings,
        *,
        strategy: str,
        threads: Threads,
        allow: Allowed,
    ) -> None:
        target, gate = target_of(worker.connection), gate_of(worker.connection, settings)
        self.gate = gate
        at = GateCommands(gate.name, gate.terms, worker.name) if gate else None
        self.commands = {
            name: WorkCommands(name, worker.name, settings.job_lease, at, settings.breaker)
            for name in dict.fromkeys(worker.queue_names())
        }
        self.gate_name = gate.name if gate else ""
        self.started = 0
        self.cold = False
        self.refused = ""  # what Redis answers to a claim that it refuses; for the heartbeat
        self._worker = worker
        self.at_once = settings.jobs_at_once
        self._order = QueueOrder(list(self.commands), strategy)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._stopping = False
        self._failures = 0  # of claims, in a row
        self._unanswered: set[str] = set()  # queues of claims whose replies have not come
        self._complaint = Complaint(log, "claiming")
        self._most = math.inf
        self._woken = asyncio.Event()  # something has changed: look again
        self._connection = AsyncConnection(target, SCRIPTS, timeout=5.0)
        self.jobs = RunningJobs(self._job_ended, settings.job_lease)
        self._room_beside = Room(self.at_once, self.jobs)
        self._gate_waiter = GateWaiter(gate, self._woken.set) if gate else None
        self._parking = ParkingLot(target, self.commands, self._woken.set)
        self._performer = Performer(
            worker, settings, gate=gate, connection=self._connection, commands=self.commands,
            jobs=self.jobs, room=self._room_beside, threads=threads, allow=allow,
        )  # fmt: skip
        self._finisher = Finisher(
            worker, connection=self._connection, commands=self.commands, jobs=self.jobs,
            threads=threads,
        )  # fmt: skip

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def stop(self, why: str) -> None:
        """Warm: no new jobs; the running ones are finished."""
        if not self._stopping:
            self._say_why_it_ends(why)
        self._stopping = True
        self._woken.set()

    def _say_why_it_ends(self, why: str) -> None:
        log.info("Worker %s ends: %s", self._worker.name, why)

    def look_again(self) -> None:
        """A queue was resumed."""
        self._woken.set()

    def stop_cold(self) -> None:
        """Interrupt the running jobs and return them to the front of their queues."""
        self.cold = True
        self._finisher.stop_cold()
        self.stop("its jobs are to go back")

    async def work(self, *, burst: bool, max_jobs: int | None, max_idle: float | None) -> None:
        """Work until stopped; in a burst, until the queues are empty."""
        self._most = max_jobs if max_jobs is not None else math.inf
        while not self._stopping:
            if self.started >= self._most:
                self.stop(f"it has started the {self.started} jobs that it may")
                break
            self._woken.clear()
            look = await self._look()
            if look.took and look.left:
                continue
            settled = not self.jobs and not self._woken.is_set()  # what ends may be queued again
            if burst and settled and (look.suspended or not look.left):
                self.stop("it works in a burst, and its queues are empty or suspended")
                break
            if not burst and not look.left:
                self._parking.park(self._room(), but=look.paused)
            if not await self._rest(look, max_idle):
                self.stop(f"it has been idle for {max_idle} s")
        await self._wind_up()

    # Claiming

    def _room(self) -> int:
        """How many jobs may be started besides those that the parking may bring."""
        room = min(self.at_once - len(self.jobs), self._most - self.started)
        return int(room) - self._parking.wanted

    async def _look(self) -> Look:
        """Start what the parking brought, then claim what there is room for."""
        permit, waiter = None, self._gate_waiter
        try:
            self._unanswered.update(self._parking.take_unanswered())
            for queue in [*self._unanswered]:
                await self._give_back_the_unknown(queue)
            found = await self._start_what_was_brought()
            if unclaimed := self._parking.take_unclaimed():
                found += await self._make_room_for(unclaimed)
            claimed: list[Found] = []
            room = self._room()
            all_asked = room > 0 and not (waiter is not None and waiter.waiting)
            if all_asked:
                permit = waiter.take() if waiter else None
                if permit is not None:
                    permit.hand_in()
                granted = permit.id if permit else ""
                claimed, all_asked = await self._claim_in_order(room, found, granted)
        except (RedisError, OSError) as failure:
            self._complaint.of(trouble(failure))
            self._failures += 1
            self.refused = str(failure) if is_refused(failure) else ""
            longest = _REFUSED_FOR if is_refused(failure) else _AWAY_FOR
            await asyncio.sleep(backoff(self._failures, 0.2, longest))
            self._woken.set()  # an idle worker has no other reason to look again
            return Look(left=True)
        finally:
            if permit is not None:
                permit.release()
        self._failures, self.refused = 0, ""
        self._complaint.over()
        return Look(
            took=sum(each.started for each in claimed),
            left=not all_asked or any(each.left and not each.paused for each in claimed),
            suspended=any(each.suspended for each in (*found, *claimed)),
            paused=frozenset(each.queue for each in (*found, *claimed) if each.paused),
        )

    async def _start_what_was_brought(self) -> list[Found]:
        """All of it is started before Redis is asked anything: a refusal would lose the others."""
        brought = [
            (queue, claim, self._begin(queue, claim))
            for queue, claim in self._parking.brought().items()
        ]
        return [await self._answer(*each) for each in brought]

    async def _make_room_for(self, queues: list[str]) -> list[Found]:
        """Jobs of these are in our hands. Without room for one, others get them."""
        await self._parking.leave()
        found = await self._start_what_was_brought()
        waiting = self._gate_waiter is not None and self._gate_waiter.waiting
        if self._room() <= 0 or waiting:
            for queue in queues:
                await self._connection.ask(self.commands[queue].give_back([], leaving=False))
        return found

    async def _give_back_the_unknown(self, queue: str) -> None:
        """The reply to a claim got lost, and Redis may have leased its jobs to us. At their leases'
        end each would count as one that its worker died of."""
        await self._parking.leave()
        await self._start_what_was_brought()
        await self._give_back_what_is_not_begun(queue)

    async def _give_back_what_is_not_begun(self, queue: str, *, leaving: bool = False) -> None:
        """Redis has leased us no more than is begun, unless the reply to a claim of this queue got
        lost."""
        rows: list[Any] = []
        if queue in self._unanswered:
            leased = await self._connection.ask(("SMEMBERS", f"{self._worker.key}:executions"))
            unknown = [member for member in map(as_text, leased) if member not in self.jobs]
            rows = [(*member.rsplit(":", 1), 0) for member in unknown]
        await self._give_back(queue, rows, leaving=leaving)
        self._unanswered.discard(queue)

    async def _give_back(self, queue: str, rows: list[Any], *, leaving: bool) -> None:
        """The last ones first, since each goes to the front of the queue."""
        for at in reversed(range(0, max(1, len(rows)), MOST)):
            command = self.commands[queue].give_back(rows[at : at + MOST], leaving=leaving)
            await self._connection.ask(command)

    async def _claim_in_order(
        self, room: int, found: list[Found], granted: str
    ) -> tuple[list[Found], bool]:
        """Claim from the queues in order; return what they gave, and whether all were asked that
        may have jobs."""
        known = {each.queue for each in found if each.is_empty or each.paused}
        claimed: list[Found] = []
        for queue in self._order:
            if queue in known or self._parking.taken(queue):
                continue
            took = sum(each.started for each in claimed)
            want = 1 if self._order.one_each else min(room - took, _AT_ONCE)
            sent = time.monotonic()
            self._unanswered.add(queue)
            reply = await self._connection.ask(self.commands[queue].claim(want, granted))
            claim = read_claim(reply, sent)
            self._unanswered.discard(queue)
            if claim.jobs:
                granted = ""
            gave = await self._answer(queue, claim, self._begin(queue, claim))
            claimed.append(gave)
            if gave.suspended or gave.shut:
                break
            more = gave.left or self._order.one_each  # this queue gave as much as one reply holds
            if took + gave.started >= room or (gave.started and more):
                return claimed, False
        return claimed, True

    def _begin(self, queue: str, claim: Claim) -> bool:
        """Start what was claimed. Of a stale claim nothing: others may run its jobs by now."""
        if claim.dropped:
            said = ", ".join(f"{id!r} ({REASONS.get(why, why)})" for id, why in claim.dropped)
            # The others are what a trainer's end, or a cancellation, leaves in the list.
            level = (
                logging.WARNING
                if {"id", "gone"} & {why for _, why in claim.dropped}
                else logging.INFO
            )
            log.log(level, "queue %r: jobs dropped, see penstock queues dropped: %s", queue, said)
        if claim.jobs and claim.is_stale(self.commands[queue].lease):
            return False
        for row in claim.jobs:
            claimed = claimed_job(self._worker, queue, row, claim.now, claim.sent)
            if tracing.on():
                traced.begin(claimed, self._worker.name)
            claimed.task = self._loop.create_task(self._run(claimed))
            claimed.task.add_done_callback(partial(self._end_unbegun, claimed))
            self.jobs.add(claimed)
        if claim.jobs:
            self._order.gave(queue)
        self.started += len(claim.jobs)
        return True

    async def _answer(self, queue: str, claim: Claim, begun: bool) -> Found:
        """Give back what is not begun, and say what there was."""
        commands, jobs, left = self.commands[queue], len(claim.jobs), bool(claim.left)
        if not begun:
            self._unanswered.add(queue)  # until these are back
            await self._connection.ask(commands.give_back(claim.rows, leaving=False))
            self._unanswered.discard(queue)
            jobs, left = 0, True
            self._woken.set()
        if claim.dropped and left:
            self._woken.set()  # a long list of such jobs takes several claims
        if claim.suspended or claim.paused or claim.shut:
            await self._connection.ask(commands.give_back([], leaving=False))
        if claim.shut and self._gate_waiter is not None:
            self._gate_waiter.join()
        return Found(queue, jobs, left, claim.suspended, claim.paused, claim.shut)

    # Running

    async def _run(self, claimed: ClaimedJob) -> None:
        try:
            with claimed.span.current():
                outcome = await self._performer.perform(claimed)
        except BaseException as error:  # noqa: BLE001 - it is the job's outcome
            outcome = self._broken_off(claimed, error)
        self._end(claimed, outcome)

    def _end_unbegun(self, claimed: ClaimedJob, task: asyncio.Task[None]) -> None:
        """End a job whose task was cancelled before its first step. So every job ends."""
        if claimed.task is task:
            self._end(claimed, self._broken_off(claimed, asyncio.CancelledError()))

    def _broken_off(self, claimed: ClaimedJob, error: BaseException) -> Outcome:
        if isinstance(error, asyncio.CancelledError) and self._is_being_ended():
            claimed.why = claimed.why or "cold"
        return Outcome.interrupted(claimed) if claimed.why else Outcome.failed(claimed, error)

    def _end(self, claimed: ClaimedJob, outcome: Outcome) -> None:
        claimed.task = None  # else each refers to the other
        if claimed.why in ("cold", "lost"):
            self.jobs.ended(claimed)  # others run it
            return
        outcome.stopped = claimed.why == "stopped"
        self._finisher.finish(outcome)

    def _job_ended(self) -> None:
        self._woken.set()
        self._room_beside.look_again()

    def _is_being_ended(self) -> bool:
        """asyncio cancels all tasks, for example after an error in the worker's own."""
        return self._task is not None and (self._task.done() or self._task.cancelling() > 0)

    def fail(self, queue: str, rows: Iterable[list[Any]], at: float) -> None:
        """Jobs that the reaper gave to this worker, because too many workers died with them. `at`
        is the server's time."""
        for row in rows:
            claimed = claimed_job(self._worker, queue, row, at, time.monotonic())
            deaths = claimed.text(b"penstock_deaths")
            error = WorkerDied(
                f"job {claimed.id}: {deaths} workers died while they ran it; it is not run again"
            )
            if tracing.on():
                traced.condemn(claimed)
            self.jobs[claimed.member] = claimed
            self._finisher.finish(Outcome.failed(claimed, error))

    # Waiting, and the end

    async def _rest(self, look: Look, max_idle: float | None) -> bool:
        """Rest until something changes; False if the worker has been idle for too long."""
        timeout = _HELD_FOR if look.suspended or look.paused else None
        if max_idle is not None and not self.jobs:
            idle_left = max_idle - (time.monotonic() - self.jobs.idle_since)
            if idle_left <= 0:
                return False
            timeout = min(timeout or idle_left, idle_left)
        try:
            async with asyncio.timeout(timeout):
                await self._woken.wait()
        except TimeoutError:
            pass  # time to look again
        return True

    async def _wind_up(self) -> None:
        await self._parking.leave()
        if self._gate_waiter is not None:
            await self._gate_waiter.leave()
        await self._give_back_the_unstarted()
        while self.jobs and not self.cold:
            self._woken.clear()
            await self._woken.wait()
        if self.jobs:
            await self._interrupt_all()
        await self._finisher.drain()

    async def close(self) -> None:
        """Redis may have been away until now: say once more that nothing runs here."""
        async with contextlib.AsyncExitStack() as last:
            for close in (
                self._connection.close, close_sandboxes_here, close_readers_here,
                self._parking.close,
            ):  # fmt: skip
                last.push_async_callback(close)
            # Without its heartbeat this worker would seem dead; now it looks like one of RQ's.
            await self._connection.ask(("HDEL", self._worker.key, "penstock_gate"))
            for queue in self.commands:
                await self._give_back_what_is_not_begun(queue, leaving=True)

    async def _give_back_the_unstarted(self) -> None:
        brought = self._parking.brought().items()
        unstarted = [queue for queue, claim in brought if claim.jobs]
        self._unanswered.update(self._parking.take_unanswered(), unstarted)
        for queue in self.commands:
            try:
                await self._give_back_what_is_not_begun(queue)
            except (RedisError, OSError) as failure:
                log.warning("what was not started goes back later: %s", failure)

    async def _interrupt_all(self) -> None:
        jobs = [each for each in self.jobs.values() if not each.ending]  # `drain` waits for those
        try:
            for queue in self.commands:
                # If its program continues, its permit stays held for as long.
                rows: list[Any] = [
                    (each.id, each.execution, int(max(each.hold, each.still_busy()) * 1e6))
                    for each in jobs
                    if each.queue == queue
                ]
                await self._give_back(queue, rows, leaving=True)
        finally:  # also if Redis is away: a closed sandbox must not seem their outcome
            self.jobs.interrupt(jobs, "cold")
            tasks = [each.task for each in jobs if each.task is not None]
            if tasks:
                await asyncio.wait(tasks, timeout=2.0)
