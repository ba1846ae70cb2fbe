"""A script of the sandbox registry may stop at any of its calls: a reaper finds what is left."""

import contextlib
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest

from ground.lua import load_script
from ground.redis.connect import target_of
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
from worker.lifecycle.provider import SandboxRef
from worker.lifecycle.registry.records import StartingPermit
from worker.lifecycle.registry.registry import Registry

LEASE, GRACE, SECOND = 10.0, 5.0, 1_000_000
Step = Callable[["Office"], Any]


class Office:
    """A registry, one owner of sandboxes, and a reaper."""

    def __init__(self, faulty: Faulty) -> None:
        self.faulty = faulty
        self.registry = Registry(target_of(faulty.client), "r", patience=0.0)
        self.registry._client.close()
        self.registry._client = faulty  # type: ignore[assignment]
        self.registry._transaction = lambda command: faulty.run(command)  # type: ignore[method-assign]
        self.fences: dict[str, str] = {}

    def begin(self) -> None:
        self.faulty.begin()
        self.fences.clear()

    def open(self, *names: str, opening: str = "") -> None:
        for name in names:
            fence, _ = self.registry.open(
                name, "owner", LEASE, provider="local", instance="i" * (name == "b"),
                permits=[StartingPermit("starting", name, 7)], dies_after=3600,
                opening=opening,
            )  # fmt: skip
            self.fences[name] = fence

    def session(self) -> None:
        self.registry.session("i", "s", "owner", LEASE)

    def ready(self) -> None:
        for name, fence in self.fences.items():
            self.registry.advance(name, fence, "READY", SandboxRef(name, name))

    def renew(self) -> None:
        self.registry.renew([(name, fence, LEASE) for name, fence in self.fences.items()])

    def prolong(self) -> None:
        for name, fence in self.fences.items():
            self.registry.prolong(name, fence, 7200)

    def condemn(self) -> None:
        for name, fence in self.fences.items():
            self.registry.condemn(name, fence, "why")

    def forget(self) -> None:
        for name, fence in self.fences.items():
            self.registry.forget(name, fence, "ended")

    def reap(self) -> None:
        """What it claims it ends, whatever that is."""
        for record in self.registry.claim("reaper", LEASE, 100, GRACE).records:
            self.registry.forget(record.name, record.fence, "reaped")

    def ask_of_starts(self) -> None:
        for name in self.fences:
            self.registry.starting(name, LEASE)

    def meet(self) -> None:
        """A server's machine says that it lives."""
        keys = ["penstock:e2b:{r}:", "penstock:e2b:{r}:machines"]
        args = ["secret", "machine", "{}", int(LEASE * SECOND)]
        self.faulty.run(load_script("worker.e2b", "meet").command(keys, args))

    def leases_end(self) -> None:
        self.faulty.now += int((LEASE + GRACE) * 2) * SECOND

    def ends(self) -> None:
        """The owner is dead; the reaper does what is left."""
        for _ in range(3):
            self.leases_end()
            self.registry.elect("reaper", "", LEASE)
            self.reap()
            self.registry.look()
            self.meet()

    def is_empty(self) -> None:
        redis = self.faulty.client
        assert not redis.keys("penstock:sandbox:{r}:box:*"), "a record that no reaper finds"
        for part in ("leases", "permits", "sessions"):
            assert not redis.exists(f"penstock:sandbox:{{r}}:{part}"), part
        living = redis.zrange("penstock:e2b:{r}:machines", 0, -1)
        said = redis.hgetall("penstock:e2b:{r}:")
        assert {field for field in said if field != b"secret"} == {
            b"machine:" + id for id in living
        }


def opened(office: Office) -> None:
    office.open("a", "b")


def session_opened(office: Office) -> None:
    office.session()
    office.open("b", opening="s")


def ready(office: Office) -> None:
    opened(office)
    office.ready()


def expired(office: Office) -> None:
    ready(office)
    office.leases_end()
    office.registry.elect("reaper", "", LEASE)


def emptied(office: Office) -> None:
    ready(office)
    office.forget()


STORIES: dict[str, tuple[Step, Step]] = {
    "open": (lambda office: None, opened),
    "ready": (opened, Office.ready),
    "session": (opened, Office.session),
    "ready, as a session": (session_opened, Office.ready),
    "renew": (ready, Office.renew),
    "prolong": (ready, Office.prolong),
    "condemn": (ready, Office.condemn),
    "forget": (ready, Office.forget),
    "elect": (ready, lambda office: office.registry.elect("reaper", "", LEASE)),
    "claim": (expired, lambda office: office.registry.claim("reaper", LEASE, 100, GRACE)),
    "look": (ready, lambda office: office.registry.look()),
    "starting": (opened, Office.ask_of_starts),
    "meet": (ready, Office.meet),
    "retire": (emptied, lambda office: office.registry.retire(0.0)),
}


@pytest.fixture
def office(faulty: Faulty) -> Office:
    return Office(faulty)


@EVERY
@pytest.mark.parametrize("again", [False, True], ids=["once", "and is repeated"])
@pytest.mark.parametrize("story", STORIES)
def test_a_script_that_stops_at_any_call_leaves_what_a_reaper_finds(
    office: Office, story: str, again: bool, every: int
) -> None:
    before, step = STORIES[story]

    def begin() -> None:
        office.begin()
        before(office)

    for number in faults_of(lambda: step(office), begin, office.faulty, every):
        with saying(f"{story} stopped at call {number}"):
            if again:
                step(office)
            office.ends()
            office.is_empty()


LIFE: tuple[Step, ...] = (
    opened,
    Office.ready,
    Office.session,
    Office.renew,
    Office.prolong,
    Office.meet,
    lambda office: office.registry.look(),
    Office.ask_of_starts,
    Office.condemn,
    lambda office: office.registry.elect("reaper", "", LEASE),
    Office.leases_end,
    Office.reap,
    Office.forget,
    opened,
    lambda office: office.registry.retire(0.0),
)


@EVERY
@pytest.mark.parametrize("command", commands_of("worker.lifecycle", "worker.e2b"))
def test_after_a_command_was_refused_for_a_while_no_sandbox_is_lost(
    office: Office, command: str, every: int
) -> None:
    """Its user lacks the right to it, from some step of their lives on, and gets it back."""
    for begins in range((SEED + crc32(command.encode())) % every, len(LIFE), every):
        with saying(f"{command} is refused from step {begins} on"):
            office.begin()
            for number, step in enumerate(LIFE):
                office.faulty.fail(command if number >= begins else 0)
                with contextlib.suppress(Injected):
                    step(office)
            office.faulty.fail()
            office.ends()
            office.is_empty()


def test_a_record_is_opened_once_however_often_its_owner_asks(office: Office) -> None:
    office.begin()
    office.open("a")
    first = dict(office.fences)
    office.open("a")
    assert office.fences == first


def test_each_script_of_sandboxes_was_stopped(office: Office) -> None:
    for before, step in STORIES.values():
        office.begin()
        before(office)
        office.faulty.fail(2)
        with contextlib.suppress(Injected):
            step(office)
        office.faulty.fail()
    scripts = every_script("worker.lifecycle") | every_script("worker.e2b")
    assert {each.name for each in scripts.values()} - office.faulty.injected == set()
