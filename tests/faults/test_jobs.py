"""A script of a queue may stop at any of its calls: every job is still found, and ends."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ground.lua import load_script
from limiter.commands import GateCommands
from limiter.terms import Terms
from tests.harness.lua_faults import EVERY, Faulty, Injected, every_script, faults_of, saying
from worker.concurrent.commands import WorkCommands, read_claim

pytestmark = pytest.mark.in_turns("fleet", "watched")

QUEUE, LEASE = "q", 10.0
WORKER, OTHER = "w1", "w2"
JOBS = ("a", "b", "c", "d", "e")
ENDED = {"finished", "failed", "canceled", "stopped"}
LATER = int((LEASE + 4000) * 1_000_000)

Step = Callable[["Fleet"], Any]


class Fleet:
    """A queue, its client and two workers, each only by the scripts that it sends."""

    def __init__(
        self, faulty: Faulty, *, gated: bool, share: str, with_breaker: bool = False
    ) -> None:
        self.faulty = faulty
        self.share = share
        gate = {name: GateCommands("g", Terms(3, None, None), name) if gated else None
                for name in (WORKER, OTHER)}  # fmt: skip
        breaker = (2, 4) if with_breaker else None
        self.commands = {
            name: WorkCommands(QUEUE, name, LEASE, gate[name], breaker) for name in gate
        }
        self.gate = gate[OTHER]
        self.held: dict[str, str] = {}  # what the first worker runs: execution by id
        self.asked: set[str] = set()

    def begin(self) -> None:
        self.faulty.begin()
        self.held.clear()
        self.asked.clear()
        for name in (WORKER, OTHER):
            self.faulty.run(self.commands[name].beat("2026", []))

    # What its processes do

    def enqueue(self, *ids: str, share: str = "") -> None:
        rows = [part for id in ids for part in (id, 60, "described", "c", "[]", 1, "")]
        words = ["origin", QUEUE, "status", "queued", "enqueued_at", "2026", "result_ttl", 500]
        args = ["inbox", "", share, len(words) // 2, *words, *rows]
        keys = ["rq:queues", f"rq:queue:{QUEUE}"]
        said = self.faulty.run(load_script("worker.queue", "enqueue").command(keys, args))
        assert {text(each) for each in said} <= {"new", "queued"}
        self.asked.update(ids)

    def park(self) -> None:
        """As the BLMOVE of an idle worker does, when it is woken."""
        for name in (WORKER, OTHER):
            self.faulty.client.lmove(f"rq:queue:{QUEUE}", self.commands[name].hand, "LEFT", "RIGHT")

    def claim(self, worker: str = WORKER, want: int = 3) -> dict[str, str]:
        claim = read_claim(self.faulty.run(self.commands[worker].claim(want)), 0.0)
        found = {text(id): text(execution) for id, execution, *_ in claim.jobs}
        self.held.update(found if worker == WORKER else {})
        return found

    def beat(self) -> None:
        rows = [(id, execution, 0, 0) for id, execution in self.held.items()]
        self.faulty.run(self.commands[WORKER].beat("2026", rows))

    def finish(self, worker: str = WORKER, how: str = "1", **held: str) -> None:
        rows = [
            (id, execution, how, 500, "payload", self.faulty.now / 1e6, "0.5", '{"a": 1}', 0)
            for id, execution in (held or self.held).items()
        ]
        self.faulty.run(self.commands[worker].finish(rows))

    def give_back(self) -> None:
        rows = [(id, execution, 0) for id, execution in self.held.items()]
        self.faulty.run(self.commands[WORKER].give_back(rows, leaving=True))

    def drop(self) -> None:
        """After RQ's own commands in the same transaction, which take effect in any case."""
        for id, execution in self.held.items():
            self.faulty.client.hset(f"rq:job:{id}", "status", "failed")
            row = (id, execution, "inbox", "failed", "", 1.0, "", 0)
            self.faulty.run(self.commands[WORKER].drop(row))

    def retry(self) -> None:
        """A job that failed has a retry left: RQ enqueues it in the same transaction."""
        for id, execution in self.held.items():
            self.faulty.client.hset(f"rq:job:{id}", "status", "queued")
            self.faulty.client.rpush(f"rq:queue:{QUEUE}", id)
            self.faulty.run(
                self.commands[WORKER].drop((id, execution, "inbox", "", "", 1.0, "", 0))
            )

    def rejoin(self) -> None:
        for id in self.held:
            self.faulty.run(self.commands[WORKER].rejoin(id))

    def reap(self) -> None:
        for id, execution, _ in self.faulty.run(self.commands[OTHER].reap(100))[2:]:
            self.finish(OTHER, **{text(id): text(execution)})

    def withdraw(self, *ids: str) -> None:
        args = [60, "inbox", *(part for id in ids for part in (id, 2, "cancel"))]
        script = load_script("worker.queue", "withdraw")
        self.faulty.run(script.command([f"rq:queue:{QUEUE}"], args))

    def ask(self, name: str, keys: list[str], args: list[Any], *forms: str) -> Any:
        return self.faulty.run(load_script("worker.queue", name, *forms).command(keys, args))

    def look(self, *forms: str) -> None:
        self.ask("look", ["rq:workers:q", "rq:queue:q"], [*self.asked], *forms)

    def feed(self) -> None:
        self.ask("feed", ["rq:queue:q"], [])

    def pause_and_resume(self) -> None:
        for paused in (1, 0):
            self.ask("pause", ["penstock:work:{q}", "penstock:work:{q}:workers"], [paused])

    def weigh(self) -> None:
        keys = ["rq:queue:q", *(f"penstock:work:{{q}}:{part}" for part in PARTS)]
        self.ask("weigh", keys, [100, "seconds", "x", 3, "*", 2])

    def show_shares(self) -> None:
        keys = ["rq:queue:q", *(f"penstock:work:{{q}}:{part}" for part in PARTS)]
        self.ask("show_shares", keys, [10])

    def time_passes(self) -> None:
        self.faulty.now += LATER

    # What is left of it

    def places(self, id: str) -> list[str]:
        """Each place in which a job is found, by those who look for jobs."""
        redis, found = self.faulty.client, []
        lists = [f"rq:queue:{QUEUE}", f"rq:queue:{QUEUE}~x"]
        for key in (*lists, *(each.hand for each in self.commands.values())):
            if redis.type(key) == b"list":
                found += [key] * redis.lrange(key, 0, -1).count(id.encode())
        leases = redis.zrange(self.commands[WORKER].leases, 0, -1)
        found += [text(each) for each in leases if text(each).rpartition(":")[0] == id]
        status = redis.hget(f"rq:job:{id}", "status")
        return found + ([text(status)] if status and text(status) in ENDED else [])

    def nothing_is_lost(self) -> None:
        for id in self.asked:
            assert self.places(id), f"job {id} is in no place"

    def go_on(self) -> None:
        """The first worker is dead; the other one does all that is left."""
        for _ in range(3):
            self.time_passes()
            self.reap()
            while found := self.claim(OTHER, want=100):
                self.finish(OTHER, **found)
        self.time_passes()
        if self.gate is not None:
            self.faulty.run(self.gate.sweep())

    def everything_has_ended(self, *, repeated: bool = False) -> None:
        redis = self.faulty.client
        for id in self.asked:
            places = self.places(id)
            assert len(places) == 1, f"job {id} is at {places}"
            assert places[0] in ENDED, f"job {id} is at {places}"
            if places[0] == "finished":
                assert redis.xlen(f"rq:results:{id}") >= 1, "a job that is finished has a result"
                if repeated:
                    assert redis.zscore("rq:finished:q", id) is not None
                assert redis.ttl(f"rq:job:{id}") > 0, "what is over is forgotten one day"
        assert redis.zcard(f"rq:wip:{QUEUE}") == 0
        assert redis.scard(f"rq:worker:{OTHER}:executions") == 0
        assert not redis.keys("rq:execution:*")
        if self.gate is not None:
            assert redis.zcard(self.gate.keys[1]) == 0, "a permit has no execution"
            assert redis.hlen(self.gate.keys[2]) == 0
            assert redis.zcard(self.gate.keys[3]) == 0


PARTS = ("shares", "idle", "weights", "clock")


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def enqueue(fleet: Fleet) -> None:
    fleet.enqueue(*JOBS[:3])
    fleet.enqueue(*JOBS[3:], share=fleet.share)


def claimed(fleet: Fleet) -> None:
    enqueue(fleet)
    fleet.claim()


def parked(fleet: Fleet) -> None:
    enqueue(fleet)
    fleet.park()


def abandoned(fleet: Fleet) -> None:
    claimed(fleet)
    fleet.park()
    fleet.time_passes()


def waited(fleet: Fleet) -> None:
    enqueue(fleet)
    fleet.claim(want=5)


def retried(fleet: Fleet) -> None:
    waited(fleet)
    fleet.retry()


STORIES: dict[str, tuple[Step, Step]] = {
    "enqueue": (lambda fleet: None, enqueue),
    "claim": (enqueue, Fleet.claim),
    "claim what the parking brought": (parked, lambda fleet: fleet.claim(want=5)),
    "claim all": (enqueue, lambda fleet: fleet.claim(want=5)),
    "claim after another has begun": (claimed, lambda fleet: fleet.claim(want=5)),
    "beat": (claimed, Fleet.beat),
    "finish": (claimed, Fleet.finish),
    "give back": (claimed, Fleet.give_back),
    "give back what the parking brought": (parked, Fleet.give_back),
    "drop": (claimed, Fleet.drop),
    "retry": (waited, Fleet.retry),
    "rejoin": (retried, Fleet.rejoin),
    "reap": (abandoned, Fleet.reap),
    "withdraw what waits": (enqueue, lambda fleet: fleet.withdraw(*JOBS)),
    "withdraw what runs": (claimed, lambda fleet: fleet.withdraw(*JOBS)),
    "look": (claimed, Fleet.look),
    "feed": (claimed, Fleet.feed),
    "pause": (enqueue, Fleet.pause_and_resume),
    "weigh": (claimed, Fleet.weigh),
    "show shares": (claimed, Fleet.show_shares),
}


@pytest.fixture(params=["plain", "gated", "shared", "gated and shared"])
def fleet(faulty: Faulty, request: pytest.FixtureRequest) -> Fleet:
    return Fleet(faulty, gated="gated" in request.param, share="x" * ("shared" in request.param))


def stopped(fleet: Fleet, story: str, every: int) -> Iterator[AbstractContextManager[None]]:
    """The same step, stopped at each of its calls in turn."""
    before, step = STORIES[story]

    def begin() -> None:
        fleet.begin()
        before(fleet)

    for number in faults_of(lambda: step(fleet), begin, fleet.faulty, every):
        yield saying(f"{story} stopped at call {number}")


@pytest.fixture(params=["plain", "gated", "shared", "gated and shared"])
def watched(faulty: Faulty, request: pytest.FixtureRequest) -> Fleet:
    """Two of four ends without an outcome open its breaker."""
    gated, share = "gated" in request.param, "x" * ("shared" in request.param)
    return Fleet(faulty, gated=gated, share=share, with_breaker=True)


def mask(fleet: Fleet) -> None:
    fleet.finish(how="masked")


def masked(fleet: Fleet) -> None:
    claimed(fleet)
    mask(fleet)
    fleet.held.clear()


def let_through(fleet: Fleet) -> None:
    """Two jobs were masked: of one the end is kept, the other waits again."""
    masked(fleet)
    fleet.faulty.now += 6_000_000
    assert len(fleet.claim(want=5)) == 3


OUTAGES: dict[str, tuple[Step, Step]] = {
    "the end that opens it": (claimed, mask),
    "others are let through": (masked, lambda fleet: fleet.claim(want=5)),
    "they fail": (let_through, mask),
    "they succeed": (let_through, lambda fleet: fleet.finish(how="finished")),
    "they were functions": (let_through, Fleet.finish),
    "they end by RQ's code": (let_through, Fleet.drop),
    "somebody looks": (masked, lambda fleet: fleet.look("breaks")),
    "somebody resumes it": (masked, Fleet.pause_and_resume),
}


@EVERY
@pytest.mark.parametrize("repeated", [False, True], ids=["once", "repeated"])
@pytest.mark.parametrize("outage", OUTAGES)
def test_a_breaker_whose_script_stops_at_any_call_loses_no_job_and_closes(
    watched: Fleet, outage: str, repeated: bool, every: int
) -> None:
    fleet = watched
    before, step = OUTAGES[outage]

    def begin() -> None:
        fleet.begin()
        before(fleet)

    for number in faults_of(lambda: step(fleet), begin, fleet.faulty, every):
        with saying(f"{outage} stopped at call {number}"):
            if repeated:
                step(fleet)
            fleet.nothing_is_lost()
            for _ in range(4):  # the sandbox is back
                fleet.time_passes()
                fleet.reap()
                while found := fleet.claim(OTHER, want=100):
                    fleet.finish(OTHER, "finished", **found)
            fleet.enqueue("last")
            assert "last" in fleet.claim(OTHER, want=100)
            fleet.go_on()
            fleet.everything_has_ended(repeated=repeated)


@EVERY
@pytest.mark.parametrize("story", STORIES)
def test_a_script_that_stops_at_any_call_loses_no_job(fleet: Fleet, story: str, every: int) -> None:
    for fault in stopped(fleet, story, every):
        with fault:
            fleet.nothing_is_lost()
            fleet.go_on()
            fleet.everything_has_ended()


@EVERY
@pytest.mark.parametrize("story", STORIES)
def test_a_step_that_is_repeated_after_it_stopped_loses_no_job(
    fleet: Fleet, story: str, every: int
) -> None:
    for fault in stopped(fleet, story, every):
        with fault:
            STORIES[story][1](fleet)
            fleet.nothing_is_lost()
            fleet.go_on()
            fleet.everything_has_ended(repeated=True)


COMMANDS = (
    "ZADD", "ZREM", "HSET", "HGET", "HMGET", "HGETALL", "HDEL", "HINCRBY", "LPOP", "LPUSH",
    "RPUSH", "LRANGE", "LTRIM", "LREM", "SADD", "SREM", "EXPIRE", "PERSIST", "XADD", "DEL",
    "EXISTS",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_a_user_without_a_command_loses_no_job_however_often_it_tries(
    fleet: Fleet, command: str
) -> None:
    fleet.begin()
    enqueue(fleet)
    fleet.faulty.fail(command)
    for _ in range(4):
        try:
            fleet.claim()
            fleet.finish()
        except Injected:
            pass
    fleet.faulty.fail()
    fleet.nothing_is_lost()
    fleet.go_on()
    fleet.everything_has_ended()


BY_HAND = {
    "a weight that is no number": ("HSET", "penstock:work:{q}:weights", "x", "abc"),
    "a mean that is no number": ("HSET", "penstock:work:{q}:weights", "~seconds", "abc"),
    "a clock that is no number": ("SET", "penstock:work:{q}:clock", "abc"),
    "a fence that is no number": ("HSET", "penstock:work:{q}", "fence", "abc"),
    "a share's list that is none": ("SET", "rq:queue:q~x", "abc"),
    "a job that is no hash": ("SET", "rq:job:a", "abc"),
    "a place that is no number": ("SET", "rq:executions:b", "abc"),
}


@pytest.mark.parametrize("what", BY_HAND)
def test_what_somebody_spoils_by_hand_loses_no_other_job(fleet: Fleet, what: str) -> None:
    fleet.begin()
    enqueue(fleet)
    command, key, *values = BY_HAND[what]
    spoiled = [id for id in JOBS if key == f"rq:job:{id}"]
    if command == "SET":
        spoiled += [text(id) for id in fleet.faulty.client.lrange(key, 0, -1)] if "~" in key else []
        fleet.faulty.client.delete(key)
    fleet.faulty.client.execute_command(command, key, *values)
    for _ in range(3):
        fleet.claim()
        fleet.finish()
        fleet.held.clear()
    fleet.go_on()
    fleet.asked.difference_update(spoiled)
    fleet.everything_has_ended()


def test_each_script_of_queues_was_stopped(faulty: Faulty) -> None:
    for kind in ("", "gated shared", "with_breaker", "gated with_breaker"):
        words = ("gated", "shared", "with_breaker")
        gated, share, with_breaker = (word in kind for word in words)
        fleet = Fleet(faulty, gated=gated, share="x" * share, with_breaker=with_breaker)
        for before, step in (OUTAGES if with_breaker else STORIES).values():
            fleet.begin()
            before(fleet)
            fleet.faulty.fail(2)
            with contextlib.suppress(Injected):
                step(fleet)
            fleet.faulty.fail()
    scripts = every_script("worker.concurrent") | every_script("worker.queue")
    assert {each.name for each in scripts.values()} - faulty.injected == set()
