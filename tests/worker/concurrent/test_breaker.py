"""A breaker opens, lets a few through, and closes: by its table, in Redis as in a process."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import ground
from ground.breaker import FEW, MOVES, PAUSE, ROUND, Breaker, Event, State, read_state
from ground.lua import load_script
from limiter import Report
from limiter.commands import GateCommands
from limiter.terms import Terms
from tests.harness.lua_faults import SEED, Faulty
from tests.harness.servers import PrivateRedis
from worker.concurrent.commands import WorkCommands, read_claim
from worker.outcomes import PROGRAM_OUTCOMES

NEED, LAST, LEASE = 3, 6, 1000.0
PUT_OFF = 3
BROKEN_OFF = ("stopped", "deleted", "enqueued again")


class Queue:
    """A queue by the scripts of one worker, beside a process's breaker that hears the same."""

    def __init__(self, faulty: Faulty, *, gated: bool) -> None:
        self.faulty = faulty
        faulty.begin()
        gate = GateCommands("g", Terms(100, None, None), "w") if gated else None
        self.commands = WorkCommands("q", "w", LEASE, gate, (NEED, LAST))
        self.key = "penstock:gate:{g}" if gated else "penstock:work:{q}"
        self.model = Breaker(NEED, LAST)
        self.running: dict[str, tuple[str, float]] = {}
        self.waiting: list[str] = []
        self.ended: dict[str, str] = {}
        self.asked = 0

    @property
    def now(self) -> float:
        return self.faulty.now / 1e6

    def state(self) -> tuple[str, ...]:
        """As it is in Redis: the state, and what the model has as numbers."""
        text = self.faulty.client.hget(self.key, "paused")
        if read_state(text and text.decode()) is State.CLOSED:
            return (State.CLOSED.value,)
        state, until, opened, out, good = text.decode().split()
        return state, until, opened, out, good

    def modelled(self) -> tuple[str, ...]:
        model = self.model
        if model.state is State.CLOSED:
            return (State.CLOSED.value,)
        moments = (f"{each * 1e6:.0f}" for each in (model.until, model.opened))
        return model.state.value, *moments, str(model.out), str(model.good)

    def enqueue(self, many: int) -> None:
        for _ in range(many):
            self.asked += 1
            id = f"j{self.asked}"
            words = ["origin", "q", "status", "queued", "enqueued_at", "2026", "result_ttl", 500]
            args = ["inbox", "", "", 4, *words, id, 60, "described", "c", "[]", 1, ""]
            script = load_script("worker.queue", "enqueue")
            self.faulty.run(script.command(["rq:queues", "rq:queue:q"], args))
            self.waiting.append(id)

    def claim(self, want: int) -> None:
        may = min(want, self.model.room(self.now), len(self.waiting))
        claim = read_claim(self.faulty.run(self.commands.claim(want)), 0.0)
        found = {id.decode(): execution.decode() for id, execution, *_ in claim.jobs}
        assert list(found) == self.waiting[: int(may)]
        self.model.let_through(len(found), self.now)
        self.running |= {id: (execution, self.now) for id, execution in found.items()}
        self.fences = {id.decode(): int(more[0]) for id, _, _, *more in claim.jobs if more}
        del self.waiting[: len(found)]

    def end(self, id: str, word: str) -> None:
        execution, began = self.running.pop(id)
        if word in BROKEN_OFF:
            self._break_off(id, execution, began, word)
            if word == "deleted" and self.model.state is State.CLOSED:
                self.model.succeed(began)  # the queue has counted its program
            else:
                self.model.back(began)
            self.ended[id] = word
            return
        row = (id, execution, word or "1", 500, "payload", f"{began:.6f}", "0.5", "{}", 0)
        (answer,) = self.faulty.run(self.commands.finish([row]))
        put_off = False
        if word == "masked":
            put_off = self.model.fail(began, self.now)
        elif word:
            self.model.succeed(began)
        else:
            self.model.back(began)
        assert (answer == PUT_OFF) is put_off
        if put_off:
            self.waiting.append(id)
        else:
            self.ended[id] = word

    def _break_off(self, id: str, execution: str, began: float, word: str) -> None:
        """It was cancelled while it ran; or deleted, and perhaps enqueued again."""
        if word == "stopped":
            row: tuple[Any, ...] = (id, execution, "", word, "", f"{began:.6f}", "", 0)
            assert self.faulty.run(self.commands.drop(row)) == 1
            return
        if word == "deleted":
            self.faulty.client.delete(f"rq:job:{id}")
        else:
            self.faulty.client.hset(f"rq:job:{id}", "penstock_execution", "")
        row = (id, execution, "finished", 500, "payload", f"{began:.6f}", "0.5", "{}", 0)
        assert self.faulty.run(self.commands.finish([row])) == [int(word == "deleted")]


@pytest.fixture
def faulty(shared_server: PrivateRedis, real_redis: Any) -> Iterator[Faulty]:
    client = ground.connect(shared_server.target)
    yield Faulty(client, "limiter", "worker.concurrent", "worker.queue")
    client.close()


def test_every_state_but_closed_has_a_way_back_to_it() -> None:
    assert set(MOVES) == set(State)
    for state in (State.OPEN, State.HALF_OPEN):
        assert MOVES[state][Event.RESUMED] is State.CLOSED
    assert MOVES[State.HALF_OPEN][Event.SUCCEEDED] is State.CLOSED


def test_the_scripts_know_the_same_numbers_and_words() -> None:
    text = load_script("worker.concurrent", "finish", "with_breaker").source
    assert f"FEW, PAUSE, ROUND = {FEW}, {PAUSE * 1e6:.0f}, {ROUND * 1e6:.0f}" in text
    assert all(f"'programs:{word}'" in text for word in PROGRAM_OUTCOMES)


@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
@pytest.mark.in_turns("run")
@pytest.mark.parametrize("run", range(12))
def test_a_breaker_in_redis_does_what_that_of_a_process_does(
    faulty: Faulty, gated: bool, run: int
) -> None:
    """Whatever ends, in whichever order; and every job ends once it is well again."""
    chance = random.Random(f"{SEED} {run}")
    queue = Queue(faulty, gated=gated)
    seen = {queue.state()[0]}
    for _ in range(150):
        sick = chance.random() < 0.6
        what = chance.choice(("enqueue", "claim", "end", "end", "end", "time"))
        if what == "enqueue":
            queue.enqueue(chance.randint(1, 4))
        elif what == "claim":
            queue.claim(chance.randint(1, 6))
        elif what == "time":
            faulty.now += chance.choice((1, 700_000, 5_000_000, 11_000_000))
        elif queue.running:
            others = ("", "finished", "wrong", "data", "masked", *BROKEN_OFF)
            word = "masked" if sick else chance.choice(others)
            queue.end(chance.choice([*queue.running]), word)
        assert queue.state() == queue.modelled(), f"PENSTOCK_TEST_SEED={SEED}"
        seen.add(queue.state()[0])
    assert seen >= {"closed", "open"}
    for _ in range(queue.asked):
        faulty.now += 11_000_000
        queue.claim(100)
        for id in [*queue.running]:
            queue.end(id, "finished")
    assert queue.state() == ("closed",)
    assert len(queue.ended) == queue.asked, "each job has ended"


@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_a_program_of_a_session_is_heard_and_not_put_off(faulty: Faulty, gated: bool) -> None:
    """Run again, it would find what it had changed itself."""
    queue = Queue(faulty, gated=gated)
    queue.enqueue(NEED + 1)
    queue.claim(NEED + 1)
    for n, (id, (execution, began)) in enumerate(queue.running.items(), 1):
        how = "masked!|lost"
        row = (id, execution, how, 500, "payload", f"{began:.6f}", "0.5", "{}", 0)
        assert faulty.run(queue.commands.finish([row])) == [1]
        assert queue.state()[0] == ("closed" if n < NEED else "open")
    known = faulty.client.hgetall("penstock:work:{q}")
    assert known[b"programs:masked"] == b"4"
    assert faulty.client.hget("penstock:work:{q}:masked", "why") == b"lost"


@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_a_program_that_ends_in_rqs_own_way_is_heard(faulty: Faulty, gated: bool) -> None:
    queue = Queue(faulty, gated=gated)
    queue.enqueue(NEED)
    queue.claim(NEED)
    for id, (execution, began) in queue.running.items():
        assert queue.state() == ("closed",)
        row = (id, execution, "", "finished", "masked", f"{began:.6f}", "0.5", 0)
        assert faulty.run(queue.commands.drop(row)) == 1
    assert queue.state()[0] == "open"


@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_whoever_was_let_through_and_died_is_forgotten(faulty: Faulty, gated: bool) -> None:
    queue = opened(faulty, gated=gated)
    faulty.now += 5_000_000
    queue.claim(100)
    assert len(queue.running) == FEW
    faulty.now += 1_000_000
    queue.claim(100)
    assert len(queue.running) == FEW, "no more while these are out"
    queue.running.clear()  # they died
    faulty.now += 9_000_000
    queue.claim(100)
    assert len(queue.running) == FEW
    for id in [*queue.running]:
        queue.end(id, "finished")
    assert queue.state() == ("closed",)


@pytest.mark.parametrize("how", BROKEN_OFF)
@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_one_success_closes_it_though_the_others_were_broken_off(
    faulty: Faulty, gated: bool, how: str
) -> None:
    queue = opened(faulty, gated=gated)
    faulty.now += 5_000_000
    queue.claim(100)
    first, *others = queue.running
    queue.end(first, "finished")
    assert queue.state()[0] == "half"
    for id in others:
        queue.end(id, how)
    assert queue.state() == ("closed",)


@pytest.mark.parametrize("how", ["finished", *BROKEN_OFF])
def test_a_job_whose_permit_went_back_early_is_counted_back_once(faulty: Faulty, how: str) -> None:
    queue = opened(faulty, gated=True)
    faulty.now += 5_000_000
    queue.claim(100)
    first = next(iter(queue.running))
    fence = queue.fences[first]
    early = queue.commands.free_permit(f"{first}:{queue.running[first][0]}", fence, Report.NOTHING)
    assert faulty.run(early) is not None
    assert queue.state()[-2:] == (str(FEW - 1), "0")
    queue.end(first, how)
    assert queue.state()[-2:] == (str(FEW - 1), str(int(how == "finished")))


@pytest.mark.parametrize("how", ["finished", *BROKEN_OFF])
@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_what_began_before_it_opened_lets_nobody_through(
    faulty: Faulty, gated: bool, how: str
) -> None:
    queue = Queue(faulty, gated=gated)
    queue.enqueue(20)
    queue.claim(8)
    old = [*queue.running]
    faulty.now += 1_000_000
    queue.claim(NEED)
    for id in [*queue.running][8:]:
        queue.end(id, "masked")
    faulty.now += 5_000_000
    queue.claim(100)
    assert (queue.state()[0], len(queue.running)) == ("half", 8 + FEW)
    for id in old:
        queue.end(id, how)
    queue.claim(100)
    assert (queue.state()[0], len(queue.running)) == ("half", FEW)


@pytest.mark.parametrize("gated", [False, True], ids=["a queue", "a gate"])
def test_a_pause_by_hand_is_no_breakers(faulty: Faulty, gated: bool) -> None:
    queue = opened(faulty, gated=gated)
    by_hand(queue, paused=True)
    faulty.now += 60_000_000
    queue.model = Breaker(NEED, LAST)
    claim = read_claim(faulty.run(queue.commands.claim(5)), 0.0)
    assert claim.jobs == []
    by_hand(queue, paused=False)
    queue.claim(100)
    assert queue.waiting == []
    assert faulty.client.hget(queue.key, "paused_why") is None


def test_a_plain_gate_that_a_breaker_paused_is_plain_again(faulty: Faulty) -> None:
    queue = opened(faulty, gated=True)
    plain = GateCommands("g", Terms(100, None, None), "other")
    assert faulty.run(plain.sweep()) == b"full"
    faulty.now += 5_000_000
    queue.claim(100)
    for id in [*queue.running]:
        queue.end(id, "finished")
    assert faulty.run(plain.sweep()) != b"full"


def test_who_waits_at_a_gate_hears_when_it_lets_some_through(faulty: Faulty) -> None:
    opened(faulty, gated=True)
    other = GateCommands("g", Terms(100, None, None), "other")
    other.use_full()
    asks = [(f"a{n}", 0, "", 1_000_000) for n in range(5)]
    reply = faulty.run(other.acquire(asks, 60_000_000, join=True))
    assert reply[1] == PAUSE * 1e6
    faulty.now += 5_000_000
    assert len(faulty.run(other.sweep())[2].split()) == 2 * FEW


def opened(faulty: Faulty, *, gated: bool) -> Queue:
    queue = Queue(faulty, gated=gated)
    queue.enqueue(12)
    queue.claim(NEED)
    for id in [*queue.running]:
        queue.end(id, "masked")
    assert queue.state()[0] == "open"
    why = faulty.client.hget(queue.key, "paused_why").decode()
    assert why == f"{NEED} of the last {NEED} programs had no outcome"
    return queue


def by_hand(queue: Queue, *, paused: bool) -> None:
    if "gate" in queue.key:
        gate = GateCommands("g", Terms(100, None, None), "hand")
        queue.faulty.run(gate.configure({"paused": str(int(paused))}))
    else:
        keys = [queue.key, f"{queue.key}:workers"]
        queue.faulty.run(load_script("worker.queue", "pause").command(keys, [int(paused)]))
