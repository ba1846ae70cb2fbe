"""The registry of session sandboxes in Redis: what is about to be made, lives, or must end.

A record is written before its sandbox is made, and outlives it. Calls block, and are
idempotent; from an event loop, make them with `aside`.
"""

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from redis.exceptions import ConnectionError, TimeoutError

from ground import Client, connect
from ground.backoff import backoff
from ground.keys import tagged
from ground.lua import Command, Script, as_text, load_script, text_fields
from ground.redis.connect import AnyRedis, target_of
from worker.lifecycle.errors import SessionEnded
from worker.lifecycle.provider import SandboxRef
from worker.lifecycle.registry.records import (
    Claimed,
    Opening,
    Record,
    Registered,
    StartingPermit,
    kept,
    read_permits,
    read_record,
    read_records,
)

INDEX = "penstock:sandboxes"
(
    _OPEN, _ADVANCE, _SESSION, _RENEW, _PROLONG, _ELECT, _CLAIM, _CONDEMN, _FORGET, _LOOK,
    _RETIRE, _STARTING,
) = (
    load_script("worker.lifecycle", name)
    for name in (
        "open", "advance", "session", "renew", "prolong", "elect", "claim", "condemn", "forget",
        "look", "retire", "starting",
    )
)  # fmt: skip
_PATIENCE = 10.0  # seconds that a call outlasts a Redis that does not answer


class Registry:
    """The sandboxes of one run on one Redis; its client may be shared with other registries."""

    def __init__(
        self, redis: AnyRedis, run: str, *, fleet: str = "",
        patience: float = _PATIENCE, client: Client | None = None,
    ) -> None:  # fmt: skip
        self.target = target_of(redis)
        self.run = run
        self._fleet = fleet
        self._patience = patience
        self._client: Client = client or connect(self.target)
        self._keys = [
            tagged("sandbox", run, part) for part in ("", "leases", "permits", "sessions")
        ]

    def open(
        self, name: str, owner: str, lease: float, *, provider: str, scope: str = "",
        instance: str, permits: Sequence[StartingPermit], dies_after: float,
        ref: SandboxRef | None = None, opening: str = "",
    ) -> tuple[str, str]:  # fmt: skip
        """Write down what is about to be made, or by its `ref` what lives already. Returns the
        record's fence, empty where a reaper has claimed it already, and the fleet's tag.
        `opening`: the record by which its caller opens the session `instance`."""
        more = ["provider", provider, "scope", scope]
        more += ["instance", instance] if instance else []
        more += ["opening", opening] if opening else []
        more += ["state", "READY", *_fields(ref)] if ref else []
        fleet = self._fleet or uuid.uuid4().hex[:16]
        terms = (_us(lease), fleet, kept(permits), _us(dies_after))
        fence, its_fleet = self._listed(_OPEN, name, owner, *terms, *more)
        return as_text(fence), as_text(its_fleet)

    def advance(self, name: str, fence: str, state: str, ref: SandboxRef | None = None) -> bool:
        """Note a sandbox's new state; False if the record no longer belongs to the caller. Raises
        `SessionEnded` if it may not be ready, since its session was ended meanwhile."""
        noted = self._call(_ADVANCE, name, fence, state, *(_fields(ref) if ref else []))
        if noted < 0:
            raise SessionEnded(name)
        return bool(noted)

    def session(self, instance: str, name: str, owner: str, lease: float) -> Opening:
        what, found, *rest = self._listed(_SESSION, instance, name, owner, _us(lease))
        match as_text(what):
            case "ready":
                record = read_record(as_text(found), rest[1])
                return Opening("ready", record.name, as_text(rest[0]), record=record)
            case "wait":
                return Opening("wait", as_text(found), seconds=rest[0] / 1e6)
        return Opening("open", as_text(found), as_text(rest[0]))

    def renew(self, rows: Sequence[tuple[str, str, float]]) -> list[bool]:
        """Renew leases; a row is a name, a fence and seconds. Returns which are still held."""
        self._enlist()
        flat = [part for name, fence, lease in rows for part in (name, fence, _us(lease))]
        return [bool(held) for held in self._call(_RENEW, *flat)]

    def elect(self, reaper: str, scope: str, lease: float) -> float | None:
        """Become the one reaper of a scope, or stay it. For how many seconds the caller has
        been; None if another one is."""
        since = self._call(_ELECT, reaper, _us(lease), office=scope)
        return None if since < 0 else since / 1e6

    def claim(
        self, reaper: str, lease: float, most: int, grace: float, *,
        scope: str = "", in_office: float | None = None, names: Sequence[str] = (),
    ) -> Claimed:  # fmt: skip
        """Take over the records that are due in a scope, or those of `names` that are. One whose
        sandbox is not found a `grace` later counts as ended. `in_office`: claim nothing before
        the caller has been the elected reaper for that long."""
        in_office_us = "" if in_office is None else _us(in_office)
        terms = (_us(lease), most, _us(grace), scope, in_office_us)
        now, due, *rows = self._call(_CLAIM, reaper, *terms, *names, office=scope)
        return Claimed(now / 1e6, None if due < 0 else due / 1e6, read_records(rows))

    def condemn(
        self, name: str, fence: str, why: str, *, wait: float = 0.0, gone_after: float | None = None
    ) -> bool:
        """Leave it to the reaper, after `wait` seconds; without a fence, whosever it is."""
        gone = "" if gone_after is None else _us(gone_after)
        return bool(self._call(_CONDEMN, name, fence, _us(wait), gone, why[:500]))

    def prolong(self, name: str, fence: str, dies_after: float) -> bool:
        """The provider ends it at another time than was written; False if the record is not the
        caller's any more."""
        return bool(self._call(_PROLONG, name, fence, _us(dies_after)))

    def forget(self, name: str, fence: str, counter: str) -> bool:
        return bool(self._call(_FORGET, name, fence, counter))

    def look(self, most: int = 1000) -> Registered:
        """The registry now. All sandboxes are counted, at most this many are listed."""
        now, facts, states, failing, *rows = self._call(_LOOK, most, office="")
        counts = {state: int(many) for state, many in text_fields(states).items()}
        return Registered(now / 1e6, text_fields(facts), counts, failing, read_records(rows))

    def facts(self) -> dict[str, str]:
        """The facts about the registry as a whole."""
        return text_fields(self._try(lambda client: client.hgetall(self._keys[0])))

    def retire(self, idle: float) -> bool:
        """Forget the whole registry, if nothing has been in it for so long."""
        if not self._call(_RETIRE, _us(idle)):
            return False
        self._try(lambda client: client.srem(INDEX, self.run))
        if self._try(lambda client: client.exists(self._keys[1])):
            self._enlist()  # another process has begun again meanwhile
        return True

    def count(self, what: str) -> None:
        """Count one more event of a kind that leaves no record."""
        self._try(lambda client: client.hincrby(self._keys[0], what))

    def permits(self) -> dict[str, tuple[StartingPermit, ...]]:
        """The STARTING permits that records keep, by the sandbox's name."""
        found = self._try(lambda client: client.hgetall(self._keys[2]))
        return {as_text(name): read_permits(value) for name, value in found.items()}

    def starting(self, name: str, longest: float) -> str:
        """Whether a sandbox's STARTING permits are needed: `held`, or why not: `ready`, `gone`, or
        `abandoned` by its owner, a start lasting so many seconds at most."""
        return as_text(self._call(_STARTING, name, _us(longest)))

    def permit_freed(self, name: str) -> None:
        self._try(lambda client: client.hdel(self._keys[2], name))

    def record(self, name: str) -> Record | None:
        """A sandbox's record, without its lease and permits."""
        key = tagged("sandbox", self.run, f"box:{name}")
        found: Any = self._try(lambda client: client.hgetall(key))
        flat = [part for pair in found.items() for part in pair]
        return read_record(name, flat) if found else None

    def state(self, name: str) -> str:
        """The state of a sandbox's record; empty if it has none."""
        key = tagged("sandbox", self.run, f"box:{name}")
        return as_text(self._try(lambda client: client.hget(key, "state")) or b"")

    def session_of(self, instance: str) -> str:
        """The name of the sandbox that an instance uses; empty if it has none."""
        return as_text(self._try(lambda client: client.hget(self._keys[3], instance)) or b"")

    def opening_ended(self, name: str) -> str:
        """The stream by which callers that wait for a session learn that its opening has ended."""
        return tagged("sandbox", self.run, f"told:{name}")

    def close(self) -> None:
        self._client.close()

    def _enlist(self) -> None:
        """Enter this run into the list of runs. On a Cluster no script reaches that list."""
        self._try(lambda client: client.sadd(INDEX, self.run))

    def _listed(self, script: Script, *args: Any) -> Any:
        """A record may only be where the run is listed: in one transaction. On a Cluster, before,
        should we die on the way; and after, should a reaper have retired the registry meanwhile."""
        if self.target.kind != "cluster":
            return self._try(lambda _: script.sent(self._transaction, self._keys, args))
        self._enlist()
        reply = self._call(script, *args)
        self._enlist()
        return reply

    def _transaction(self, command: Command) -> Any:
        with self._client.pipeline() as pipe:
            pipe.sadd(INDEX, self.run)
            pipe.execute_command(*command)
            return pipe.execute()[1]

    def _call(self, script: Script, *args: Any, office: str | None = None) -> Any:
        more = [] if office is None else [tagged("sandbox", self.run, f"office:{office}")]
        return self._try(lambda client: script.call(client, self._keys + more, args))

    def _try(self, call: Callable[[Any], Any]) -> Any:
        """Retry while Redis does not answer, up to a time limit: every call is idempotent."""
        deadline, failures = time.monotonic() + self._patience, 0
        while True:
            try:
                return call(self._client)
            except (ConnectionError, TimeoutError):
                failures += 1
                pause = backoff(failures, 0.05, 1.0)
                if time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)


def runs(redis: AnyRedis) -> list[str]:
    """The runs that have a registry on this Redis."""
    with contextlib.closing(connect(target_of(redis))) as client:
        members: Any = client.smembers(INDEX)
        return sorted(map(as_text, members))


def _fields(ref: SandboxRef) -> list[str]:
    return ["id", ref.id, "meta", json.dumps(dict(ref.meta))]


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
