"""The registry of session sandboxes in Redis: what is about to be made, lives, or must end.

    CREATING(name) → STARTING(id) → READY → TERMINATING → gone

A record is written before its sandbox is made, and outlives it. Calls are sync and
idempotent; whoever is on an event loop makes them by `aside`.
"""

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from redis.exceptions import ConnectionError, TimeoutError

from ground import (
    AnyClient,
    Client,
    RedisTarget,
    connect,
    load_script,
    parse_redis_url,
    tagged,
    target_of,
)
from worker.lifecycle.provider import SandboxRef

T = TypeVar("T")

INDEX = "penstock:sandboxes"
_OPEN, _ADVANCE, _SESSION, _RENEW, _ELECT, _CLAIM, _CONDEMN, _FORGET, _LOOK = (
    load_script("worker.lifecycle", name)
    for name in (
        "open", "advance", "session", "renew", "elect", "claim", "condemn", "forget", "look",
    )
)  # fmt: skip
_PATIENCE = 10.0  # seconds that a call outlasts a Redis that does not answer


@dataclass(frozen=True)
class StartingPermit:
    """A permit of a gate, as a record keeps it: anybody can give it back."""

    gate: str
    id: str
    fence: int


@dataclass(frozen=True)
class Record:
    """One sandbox's record. Times are seconds of the server's clock."""

    name: str
    state: str
    fence: str
    owner: str = ""
    provider: str = ""
    instance: str = ""
    ref: SandboxRef | None = None
    made: float = 0.0
    lease_end: float = 0.0
    gone_after: float = 0.0
    dies_at: float = 0.0
    was: str = ""
    tries: int = 0
    error: str = ""
    permits: tuple[StartingPermit, ...] = ()


@dataclass(frozen=True)
class Registered:
    """A registry at one instant of the server's clock."""

    now: float
    count: int
    facts: Mapping[str, str]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Turn:
    """What `session` answers: `ready` with its record, `wait` for another opener, or `open`."""

    what: str
    name: str
    fence: str = ""
    seconds: float = 0.0
    record: Record | None = field(default=None)


class Registry:
    """The sandboxes of one run on one Redis."""

    def __init__(
        self, redis: AnyClient | RedisTarget | str, run: str, *, fleet: str = "",
        patience: float = _PATIENCE,
    ) -> None:  # fmt: skip
        self.target = described(redis)
        self.run = run
        self._fleet = fleet
        self._patience = patience
        self._client: Client = connect(self.target)
        self._keys = [
            tagged("sandbox", run, part) for part in ("", "leases", "permits", "sessions")
        ]

    def open(
        self, name: str, owner: str, lease: float, *, provider: str, instance: str,
        permits: Sequence[StartingPermit], gone_after: float, dies_after: float,
    ) -> tuple[str, str]:  # fmt: skip
        """Write down what is about to be made. Its fence, empty if it is lost; the fleet."""
        self._enlist()
        kept = json.dumps([[p.gate, p.id, p.fence] for p in permits]) if permits else ""
        more = ["provider", provider, *(["instance", instance] if instance else [])]
        fence, fleet = self._call(
            _OPEN, name, owner, _us(lease), self._fleet or uuid.uuid4().hex[:16], kept,
            _us(gone_after), _us(dies_after), *more,
        )  # fmt: skip
        return _text(fence), _text(fleet)

    def advance(self, name: str, fence: str, state: str, ref: SandboxRef | None = None) -> bool:
        """Whether the record was still the caller's."""
        more = ["id", ref.id, "meta", json.dumps(dict(ref.meta))] if ref else []
        return bool(self._call(_ADVANCE, name, fence, state, *more))

    def session(self, instance: str, name: str, owner: str, lease: float) -> Turn:
        self._enlist()
        what, found, *rest = self._call(_SESSION, instance, name, owner, _us(lease))
        match _text(what):
            case "ready":
                record = _record(_text(found), rest[1])
                return Turn("ready", record.name, _text(rest[0]), record=record)
            case "wait":
                return Turn("wait", _text(found), seconds=rest[0] / 1e6)
        return Turn("open", _text(found), _text(rest[0]))

    def renew(self, rows: Sequence[tuple[str, str, float]]) -> list[bool]:
        """Each row: name, fence, lease in seconds. Which of them are still held."""
        self._enlist()
        flat = [part for name, fence, lease in rows for part in (name, fence, _us(lease))]
        return [bool(held) for held in self._call(_RENEW, *flat)]

    def elect(self, reaper: str, lease: float) -> tuple[bool, float, dict[str, str]]:
        """Whether the caller is the reaper, for how long it has been, and the registry's facts."""
        fleet = self._fleet or uuid.uuid4().hex[:16]
        elected, since, facts = self._call(_ELECT, reaper, _us(lease), fleet)
        return bool(elected), since / 1e6, _fields(facts)

    def claim(self, reaper: str, lease: float, most: int) -> tuple[float | None, list[Record]]:
        """Seconds until the next record is due, and those that are due, now the caller's."""
        due, *rows = self._call(_CLAIM, reaper, _us(lease), most)
        return (None if due < 0 else due / 1e6), _records(rows)

    def condemn(
        self, name: str, fence: str, why: str, *, wait: float = 0.0, gone_after: float | None = None
    ) -> bool:
        """Leave it to the reaper, after `wait` seconds; without a fence, whosever it is."""
        gone = "" if gone_after is None else _us(gone_after)
        return bool(self._call(_CONDEMN, name, fence, _us(wait), gone, why[:500]))

    def forget(self, name: str, fence: str, counter: str) -> bool:
        return bool(self._call(_FORGET, name, fence, counter))

    def look(self, most: int = 1000) -> Registered:
        now, count, facts, *rows = self._call(_LOOK, most)
        return Registered(now / 1e6, count, _fields(facts), tuple(_records(rows)))

    def permits(self) -> dict[str, tuple[StartingPermit, ...]]:
        """The STARTING permits that records keep, by the sandbox's name."""
        kept = self._try(lambda client: client.hgetall(self._keys[2]))
        return {_text(name): _permits(value) for name, value in kept.items()}

    def permit_freed(self, name: str) -> None:
        self._try(lambda client: client.hdel(self._keys[2], name))

    def state(self, name: str) -> str:
        """Empty where there is no such record."""
        key = tagged("sandbox", self.run, f"box:{name}")
        return _text(self._try(lambda client: client.hget(key, "state")) or b"")

    def session_of(self, instance: str) -> str:
        """The name of the sandbox that an instance uses; empty where it has none."""
        return _text(self._try(lambda client: client.hget(self._keys[3], instance)) or b"")

    def told(self, name: str) -> str:
        """Where it is said that an opening of a session has ended."""
        return tagged("sandbox", self.run, f"told:{name}")

    def close(self) -> None:
        self._client.close()

    def _enlist(self) -> None:
        """Before anything is there to be found, and again in case Redis has lost it."""
        self._try(lambda client: client.sadd(INDEX, self.run))

    def _call(self, script: Any, *args: Any) -> Any:
        return self._try(lambda client: script.call(client, self._keys, args))

    def _try(self, deed: Callable[[Any], Any]) -> Any:
        """Again while Redis does not answer, for some patience: every call is idempotent."""
        deadline, pause = time.monotonic() + self._patience, 0.05
        while True:
            try:
                return deed(self._client)
            except (ConnectionError, TimeoutError):
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(1.0, pause * 2)


def runs(redis: AnyClient | RedisTarget | str) -> list[str]:
    """The runs that have a registry on this Redis."""
    with contextlib.closing(connect(described(redis))) as client:
        members: Any = client.smembers(INDEX)
        return sorted(map(_text, members))


def _new_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(8, thread_name_prefix="penstock-registry")


_threads = _new_threads()


def _forget_parent() -> None:
    global _threads
    _threads = _new_threads()


os.register_at_fork(after_in_child=_forget_parent)


async def aside(deed: Callable[[], T]) -> T:
    """Make a registry's call off the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads, deed)


def described(redis: AnyClient | RedisTarget | str) -> RedisTarget:
    if isinstance(redis, str):
        return parse_redis_url(redis)
    return redis if isinstance(redis, RedisTarget) else target_of(redis)


def _records(rows: Sequence[Any]) -> list[Record]:
    return [
        _record(_text(name), flat, lease_end=float(score) / 1e6, permits=_permits(permits))
        for name, score, flat, permits in zip(*(iter(rows),) * 4, strict=True)
    ]


def _record(name: str, flat: Sequence[Any], **more: Any) -> Record:
    fields = _fields(flat)
    ref = None
    if "id" in fields:
        ref = SandboxRef(fields["id"], name, json.loads(fields.get("meta", "{}")))
    known: dict[str, Any] = {key: fields.get(key, "") for key in _WORDS}
    known |= {key: float(fields.get(key, 0)) / 1e6 for key in _TIMES}
    return Record(name=name, ref=ref, tries=int(fields.get("tries", 0)), **known, **more)


_WORDS = ("state", "fence", "owner", "provider", "instance", "was", "error")
_TIMES = ("made", "gone_after", "dies_at")


def _permits(kept: bytes | str) -> tuple[StartingPermit, ...]:
    return tuple(StartingPermit(*permit) for permit in json.loads(kept)) if kept else ()


def _fields(flat: Sequence[Any]) -> dict[str, str]:
    words = [_text(word) for word in flat]
    return dict(zip(words[::2], words[1::2], strict=True))


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
