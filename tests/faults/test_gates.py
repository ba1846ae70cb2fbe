"""A script of a gate may stop at any of its calls: no permit leaks, and nobody waits in vain."""

import contextlib
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from ground.keys import tagged
from ground.lua import Command, load_script
from limiter.commands import NOT_PLAIN, SCRIPTS, GateCommands
from limiter.terms import Adaptive, Terms
from tests.harness.lua_faults import (
    EVERY,
    SEED,
    Faulty,
    Injected,
    commands_of,
    every_script,
    faults_of,
    saying,
)

LIMIT = 4
SECOND = 1_000_000
ALIVE, LEASE = 30 * SECOND, 10 * SECOND
KINDS = ("plain", "costs", "shares", "costs and shares", "adaptive", "rate")
Step = Callable[["Gate"], Any]


class Gate:
    """A gate and three processes that use it, each only by the scripts that it sends."""

    def __init__(self, faulty: Faulty, kind: str) -> None:
        self.faulty, self.kind = faulty, kind
        limit = Adaptive(LIMIT, 1, 8) if kind == "adaptive" else LIMIT
        terms = Terms(limit, 1000.0, 100) if kind == "rate" else Terms(limit, None, None)
        self.at = {name: GateCommands("g", terms, name) for name in "pqr"}
        self.key = {part: tagged("gate", "g", part) for part in PARTS}
        self.fences: dict[str, int] = {}

    def begin(self) -> None:
        self.faulty.begin()
        self.fences.clear()
        self.sweep()
        self.faulty.now += SECOND

    def ask(self, process: str, *ids: str, released: tuple[str, ...] = ()) -> None:
        costs, shares = "costs" in self.kind, "shares" in self.kind
        rows: list[tuple[str, int | str, str, int | str]] = [
            (id, f"0 {'xy'[n % 2]}" if shares else 0, "",
             self.term(id))
            for n, id in enumerate(ids)
        ]  # fmt: skip
        reply = self.on_path(
            process,
            lambda at: at.acquire(
                rows, ALIVE, join=True, weighs=costs, shares=shares,
                released=[(id, self.fences[id]) for id in released if id in self.fences],
            )
        )  # fmt: skip
        self.hear(reply[2])
        for id, fence in zip(ids, reply[7::2], strict=True):
            if int(fence) > 0:
                self.fences[id] = int(fence)

    def on_path(self, process: str, command: Callable[[GateCommands], Command]) -> Any:
        reply = self.faulty.run(command(self.at[process]))
        if reply == NOT_PLAIN:
            self.at[process].use_full()
            reply = self.faulty.run(command(self.at[process]))
        return reply

    def term(self, id: str) -> int | str:
        return f"{LEASE} {1 + ord(id) % 3}" if "costs" in self.kind else LEASE

    def hear(self, grants: bytes) -> None:
        words = grants.decode().split()
        self.fences.update(
            {id: int(fence) for id, fence in zip(words[::2], words[1::2], strict=True)}
        )

    def release(self, *ids: str) -> None:
        report = " o" if self.kind == "adaptive" else ""
        held = [(id, f"{self.fences[id]}{report}") for id in ids if id in self.fences]
        self.hear(self.on_path("p", lambda at: at.release(held))[2])

    def renew(self) -> None:
        held = [(id, fence, self.term(id)) for id, fence in self.fences.items()]
        self.hear(self.faulty.run(self.at["p"].renew(held, ALIVE))[2])

    def cancel(self) -> None:
        self.hear(self.faulty.run(self.at["q"].cancel("cancelled", ["a", "f", "g"]))[2])

    def configure(self) -> None:
        changes = {"limit": "6", "paused": "0"}
        if "shares" in self.kind:
            changes["weight:x"] = "3"
        self.hear(self.faulty.run(self.at["r"].configure(changes))[2])

    def revoke(self) -> None:
        self.hear(self.faulty.run(self.at["r"].revoke("a", "call"))[2])

    def sweep(self) -> None:
        self.hear(self.on_path("r", GateCommands.sweep)[2])

    def status(self) -> None:
        self.faulty.run(self.at["r"].status())

    def remove(self) -> None:
        keys = self.at["r"].all_keys
        self.faulty.run(load_script("limiter", "remove").command(keys, ["0"]))

    def data_is_lost(self) -> None:
        self.faulty.client.delete(*self.key.values())

    def leases_end(self) -> None:
        self.faulty.now += LEASE + SECOND

    # What is left of it

    def is_within_its_limit(self) -> None:
        """The leases in force cost no more than the limit."""
        redis = self.faulty.client
        leases = {
            id.decode() for id in redis.zrangebyscore(self.key["leases"], self.faulty.now, "+inf")
        }
        costs = redis.hgetall(self.key["costs"])
        used = sum(int(costs.get(id.encode(), 1)) for id in leases)
        limit = int(redis.hget(self.key[""], "limit") or LIMIT)
        assert used <= limit or len(leases) == 1, f"{leases} cost {used} of {limit}"

    def ends(self) -> None:
        """All holders die. Those who wait are let in, one after the other, and end."""
        for turn in range(12):
            self.leases_end()
            for process in "pqr":
                self.sweep()
                self.faulty.run(self.at[process].renew([], ALIVE))
            self.is_within_its_limit()
            if turn > 3 and not self.waiting():
                break
        self.leases_end()
        self.sweep()

    def waiting(self) -> int:
        redis = self.faulty.client
        return int(redis.zcard(self.key["queue"]) + redis.zcard(self.key["order"]))

    def is_empty(self) -> None:
        redis = self.faulty.client
        assert self.waiting() == 0, "somebody waits in vain"
        assert redis.zcard(self.key["leases"]) == 0
        assert redis.hlen(self.key["holders"]) == 0, "a holder without a lease"
        assert redis.hlen(self.key["costs"]) == 0, "a cost without a permit"
        assert int(redis.hget(self.key[""], "extra") or 0) == 0, "costs of nobody are counted"
        limit = int(redis.hget(self.key[""], "limit") or LIMIT)
        self.fences.clear()
        ids = [chr(ord("A") + n) for n in range(limit)]
        if "costs" not in self.kind:
            self.ask("r", *ids)
            assert len(self.fences) >= min(limit, LIMIT), "the gate has less room than its limit"


PARTS = (
    "", "leases", "holders", "queue", "waiters", "alive", "costs", "order", "shares:0", "idle:0",
    "weights", "changes",
)  # fmt: skip


def full(gate: Gate) -> None:
    gate.ask("p", *"abcd")
    gate.ask("q", *"efgh")


def ended(gate: Gate) -> None:
    full(gate)
    gate.leases_end()


def lost(gate: Gate) -> None:
    full(gate)
    gate.data_is_lost()


STORIES: dict[str, tuple[Step, Step]] = {
    "ask": (lambda gate: None, full),
    "ask and release": (full, lambda gate: gate.ask("p", "i", "j", released=("a", "b"))),
    "release": (full, lambda gate: gate.release(*"abcd")),
    "renew": (full, Gate.renew),
    "renew what was lost": (lost, Gate.renew),
    "cancel": (full, Gate.cancel),
    "configure": (full, Gate.configure),
    "revoke": (full, Gate.revoke),
    "sweep": (ended, Gate.sweep),
    "status": (ended, Gate.status),
    "remove": (lambda gate: None, Gate.remove),
}


@EVERY
@pytest.mark.in_turns("kind")
@pytest.mark.parametrize("again", [False, True], ids=["once", "and is repeated"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("story", STORIES)
def test_a_script_that_stops_at_any_call_keeps_the_limit_and_leaks_nothing(
    faulty: Faulty, story: str, kind: str, again: bool, every: int
) -> None:
    gate, (before, step) = Gate(faulty, kind), STORIES[story]

    def begin() -> None:
        gate.begin()
        before(gate)

    for number in faults_of(lambda: step(gate), begin, faulty, every):
        with saying(f"{story} stopped at call {number}"):
            if again:
                step(gate)
            gate.is_within_its_limit()
            gate.ends()
            gate.is_empty()


LIFE: tuple[Step, ...] = (
    full,
    lambda gate: gate.ask("p", "i", "j", released=("a", "b")),
    lambda gate: gate.release("c", "e"),
    Gate.renew,
    Gate.cancel,
    Gate.configure,
    Gate.revoke,
    Gate.status,
    lambda gate: gate.ask("r", "k", "l"),
    Gate.leases_end,
    Gate.sweep,
    lambda gate: gate.ask("p", "m", "n"),
    lambda gate: gate.release("m"),
)


@EVERY
@pytest.mark.parametrize("command", commands_of("limiter"))
def test_after_a_command_was_refused_for_a_while_no_permit_is_lost(
    faulty: Faulty, command: str, every: int
) -> None:
    """Its user lacks the right to it, from some step of a gate's life on, and gets it back."""
    chosen = SEED + crc32(command.encode())
    for kind in KINDS if every == 1 else [KINDS[chosen % len(KINDS)]]:
        gate = Gate(faulty, kind)
        for begins in range(chosen % every, len(LIFE), every):
            with saying(f"{command} is refused to {kind} from step {begins} on"):
                gate.begin()
                for number, step in enumerate(LIFE):
                    faulty.fail(command if number >= begins else 0)
                    with contextlib.suppress(Injected):
                        step(gate)
                    gate.is_within_its_limit()
                faulty.fail()
                gate.ends()
                gate.is_empty()


def test_each_script_of_gates_was_stopped(faulty: Faulty) -> None:
    for gate in (Gate(faulty, "plain"), Gate(faulty, "adaptive")):
        for before, step in STORIES.values():
            gate.begin()
            before(gate)
            faulty.fail(2)
            with contextlib.suppress(Injected):
                step(gate)
            faulty.fail()
    assert {each.name for each in every_script("limiter").values()} - faulty.injected == set()
    assert {each.name for each in SCRIPTS.values()} <= faulty.injected


@pytest.mark.parametrize("field", ["limit", "rate"])
def test_what_is_no_number_lets_nobody_in_until_it_is_one(faulty: Faulty, field: str) -> None:
    gate = Gate(faulty, "rate")
    gate.begin()
    gate.ask("p", "a")
    faulty.client.hset(gate.key[""], field, "64x")
    gate.ask("q", "b")
    assert set(gate.fences) == {"a"}
    faulty.client.hset(gate.key[""], field, "64")
    gate.sweep()
    assert gate.waiting() == 0
