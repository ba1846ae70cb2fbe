"""A script of a session may stop at any of its calls: no committed turn is lost or doubled."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from buffer import RolloutBuffer, TaskConfig
from buffer.settings import BufferSettings
from gateway.calls import Call, Sent
from gateway.errors import SessionOver
from gateway.items import rows_in
from gateway.log import Asked, Fresh, Join, Replay, Session, SessionLog
from gateway.packing import floats_of, ids_of, spread
from gateway.settings import GatewaySettings
from tests.harness.lua_faults import (
    EVERY,
    Faulty,
    FaultyLink,
    every_script,
    faults_of,
    saying,
)

SECOND = 1_000_000
CONFIG = TaskConfig(group_size=1, dialect="v1", max_bytes=10**6)
Step = Callable[["Office"], Any]


class Office:
    """A session, the process that serves it, and another one that does what is left."""

    def __init__(self, faulty: Faulty, runner: asyncio.Runner) -> None:
        self.faulty, self._runner = faulty, runner
        self.link = FaultyLink(faulty)
        self._logs: tuple[SessionLog, ...] = ()
        self.begin()

    def begin(self) -> None:
        self.close()
        self.faulty.begin()
        settings = GatewaySettings.load()
        self.buffer = RolloutBuffer(self.link, "t", CONFIG, settings=BufferSettings.load())
        self._logs = tuple(SessionLog(self.link, "default", settings) for _ in range(2))
        self.log, self.other = self._logs
        self.fences: dict[int, str] = {}
        self.answered: dict[int, int] = {}  # request → the call whose answer its client has
        self.run(self.buffer.config())

    def close(self) -> None:
        """Have the processes of a story end; else they renew calls of the next one, whose numbers
        are the same."""
        for log in self._logs:
            self.run(log.aclose())

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(call)

    @property
    def session(self) -> Session:
        return Session("default", "t", self.sid)

    def open(self) -> None:
        self.sid = self.run(self.log.open("t", "u1", "i1")).session.sid

    def ask(self, request: int, log: SessionLog | None = None, *, retry: bool = False) -> None:
        """Begin a call for this request, as far as a commit."""
        asked = Asked(request.to_bytes(16), key=f"k{request}", retry=retry)
        self.begun = self.run((log or self.log).begin(self.session, asked))

    def commit(self, request: int, log: SessionLog | None = None) -> None:
        if isinstance(self.begun, Replay):
            self.answered[request] = self.begun.call.id
            return
        assert isinstance(self.begun, Fresh)
        number = self.begun.call
        call = Call(
            number, delta=ids_of([1, request]), out=ids_of([request, number]),
            lps=floats_of([-1, -2]), spans=((2, 7),), req_digest=request.to_bytes(16),
            retry=self.begun.retry,
        )  # fmt: skip
        commit = (log or self.log).commit
        self.run(commit(self.session, self.begun.fence, call, request.to_bytes(16), b"said"))
        self.answered[request] = number

    def turn(self, request: int) -> None:
        self.ask(request)
        self.commit(request)

    def say(self) -> None:
        for call in self.answered.values():
            self.log.sent(self.session, call, Sent.WHOLE)
        self.run(self.log._notes.flush())

    def give_up(self) -> None:
        self.log.broke(self.session, self.begun.call, self.begun.fence)
        self.run(self.log._notes.flush())

    def freeze(self) -> None:
        self.run(self.log.freeze(self.session, drain=0))

    def finalize(self, log: SessionLog | None = None) -> None:
        self.run((log or self.log).finalize(self.session, 1.0, drain=0))

    def ids(self) -> None:
        self.run(self.other.ids(self.session, 1))

    def sweep(self) -> None:
        self.run(self.other.sweep("t"))

    def time_passes(self, seconds: float) -> None:
        self.faulty.now += int(seconds * SECOND)

    def go_on(self, requests: int) -> None:
        """The first process is dead. Its client sends what was not answered to another one."""
        with contextlib.suppress(SessionOver):
            self.open()
        self.log._notes._held.clear()  # else it renews its calls, if the test takes some seconds
        self.time_passes(20)
        self.sweep()
        if self.faulty.client.hget(self.session.key(), "state") == b"live":
            for request in range(1, requests + 1):
                if request not in self.answered:
                    self.ask(request, self.other, retry=True)
                    assert not isinstance(self.begun, Join), "its process is gone"
                    self.commit(request, self.other)
        self.finalize(self.other)

    def all_is_in_the_buffer(self) -> None:
        """Each answer that a client has is in one row, and nothing else is left."""
        (item,) = self.run(self.buffer.take(1)).items
        assert self.run(self.buffer.take(1)) is None
        rows = [row for row, _ in rows_in(item)]
        calls = [call for row in rows for call, *_ in row.calls]
        assert len(set(calls)) == len(calls)
        assert set(self.answered.values()) <= set(calls), "a turn is lost"
        requests = [row.tokens[1] for row in rows]
        assert sorted(requests) == sorted(set(requests)), "a turn is there twice"
        for row in rows:
            assert list(row.tokens) == [1, row.tokens[1], row.tokens[1], row.calls[0][0]]
            assert spread(row.mask) == [1, 1]

    def nothing_stays(self) -> None:
        redis = self.faulty.client
        root = self.session.root
        stay = [
            key
            for key in redis.keys("*session*") + redis.keys("penstock:gateway:*")
            if redis.ttl(key) == -1
        ]
        assert stay == []
        assert int(redis.hget(f"{root}:state", "session_bytes") or 0) <= 0
        assert redis.zcard(f"{root}:sessions") == 0


def opened(office: Office) -> None:
    office.open()


def answered(office: Office) -> None:
    office.open()
    office.turn(1)
    office.say()


def asked(office: Office) -> None:
    answered(office)
    office.ask(2)


def frozen(office: Office) -> None:
    answered(office)
    office.turn(2)
    office.freeze()


def overdue(office: Office) -> None:
    asked(office)
    office.time_passes(20)


STORIES: dict[str, tuple[Step, Step]] = {
    "open": (lambda office: None, Office.open),
    "begin": (answered, lambda office: office.ask(2)),
    "begin again": (answered, lambda office: office.ask(1)),
    "commit": (asked, lambda office: office.commit(2)),
    "say what was sent": (lambda office: (opened(office), office.turn(1)), Office.say),
    "give up": (asked, Office.give_up),
    "read ids": (answered, Office.ids),
    "freeze": (asked, Office.freeze),
    "finalize": (frozen, Office.finalize),
    "finalize with a call under way": (asked, Office.finalize),
    "sweep": (overdue, Office.sweep),
}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def office(faulty: Faulty, runner: asyncio.Runner) -> Iterator[Office]:
    office = Office(faulty, runner)
    yield office
    office.close()


@pytest.mark.parametrize("again", [False, True], ids=["once", "and is repeated"])
@pytest.mark.parametrize("story", STORIES)
@EVERY
def test_a_script_that_stops_at_any_call_loses_no_turn(
    faulty: Faulty, office: Office, every: int, story: str, again: bool
) -> None:
    before, step = STORIES[story]

    def begin() -> None:
        office.begin()
        before(office)

    for number in faults_of(lambda: step(office), begin, faulty, every):
        with saying(f"{story} stopped at call {number}"):
            if again:
                step(office)
            masked = "under way" in story or story == "freeze"
            office.go_on(2)
            if not masked:
                office.all_is_in_the_buffer()
            office.nothing_stays()


def test_each_script_of_sessions_was_stopped(faulty: Faulty, office: Office) -> None:
    for before, step in STORIES.values():
        faulty.stop_each(1, office, before, step)
    assert {each.name for each in every_script("gateway").values()} - faulty.injected == set()
