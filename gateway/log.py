"""The log of sessions in Redis: a call costs two round trips, its beginning and its commit.

A session belongs to no process. A call that is open belongs to one, by a lease; the commit carries
the fence of its beginning. Every method may be repeated without harm.
"""

import json
import logging
import math
import secrets
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from buffer.errors import BufferFull, ItemRefused, RolloutBufferError, SlotLost
from buffer.item import entry_of, instance_key, round_key
from buffer.link import Link, deadline_in
from buffer.settings import BufferSettings
from buffer.task import Task
from buffer.writer import OUTCOMES, Outcome
from gateway.calls import Call, Sent
from gateway.canonical import canonical_json, digest
from gateway.errors import (
    BudgetSpent,
    CallConflict,
    CallLost,
    GatewayError,
    KeyReused,
    RewardDiffers,
    SessionOver,
    SessionsFull,
    SessionUnknown,
)
from gateway.items import RESERVED, item_of
from gateway.notes import Notes
from gateway.packing import Ids, ids_of
from gateway.record_format import call_of, full_from, record_of
from gateway.settings import GatewaySettings
from gateway.training_rows import Log, Rows, rows_of
from ground import tracing
from ground.keys import in_run, tagged
from ground.lua import as_text, fields_of, load_script, text_fields
from ground.recent import Recent
from ground.redis.connect import AnyRedis

log = logging.getLogger(__name__)

_OPEN, _BEGIN, _IDS, _COMMIT, _FREEZE, _FINALIZE, _SWEEP = (
    load_script("gateway", name, "full")
    for name in ("open", "begin", "ids", "commit", "freeze", "finalize", "sweep")
)
KEY_LENGTH = 35
"""The characters of a session's key."""

_PACKED = 0.6  # a record's bytes in those of its item: base64, and room for masks
_LONGEST_ANSWER = 64 * 1024
_MOST_FOUND = 50_000
_LATER = 5.0  # seconds
_TOLD = 0.4  # seconds within which a process says what it sent of an answer
_SWEPT = 64  # sessions looked at in one sweep
_NO_ENTRY = ("",) * 7 + (1,) + ("",) * 3


@dataclass(frozen=True, slots=True)
class Session:
    """A session's keys, and what its opener fixed.

    sampling  the session's parameters of sampling and other facts, as its opener gave them
    trace     the span that it was opened in, if there was one
    """

    run: str
    task: str
    sid: str
    sampling: dict[str, Any] = field(default_factory=dict, hash=False)
    trace: str = field(default="", compare=False)

    @property
    def root(self) -> str:
        """The only key that scripts get: the one of its buffer's task."""
        return tagged("buffer", in_run(self.run, self.task))

    def key(self) -> str:
        """The key of what is known of the session."""
        return tagged("buffer", in_run(self.run, self.task), f"session:{self.sid}")

    def calls_key(self) -> str:
        """The key of a session's calls."""
        return tagged("buffer", in_run(self.run, self.task), f"session:{self.sid}:calls")

    def states_key(self) -> str:
        """How its calls stand."""
        return tagged("buffer", in_run(self.run, self.task), f"session:{self.sid}:states")

    def bell_key(self, what: str) -> str:
        """The key of the bell that wakes those who wait for a call, or for the last one."""
        return tagged("buffer", in_run(self.run, self.task), f"session:{self.sid}:bell:{what}")


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of a session; 0: without a bound. `turns` count with an answer, or under way;
    `seconds` count from its opening."""

    tokens: int = 0
    turns: int = 0
    seconds: float = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A session, and the key with which its agent speaks. The key is nowhere else."""

    session: Session
    key: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's facts about itself, before a call begins.

    digest      of its body (`canonical.digest`)
    hashes      after each of its assistant's turns, the newest first (`canonical.turns`)
    retry       its client says that it is a retry
    key         its Idempotency-Key
    live        content leaves before the commit
    waited      it has waited for a `Join` already
    """

    digest: bytes
    hashes: tuple[bytes, ...] = ()
    retry: bool = False
    key: str = ""
    live: bool = False
    waited: bool = False


@dataclass(frozen=True, slots=True)
class Fresh:
    """Sample an answer, and commit it under this number and fence.

    at       when it began, in milliseconds by Redis' clock: the call's `t0`
    hits     per hash of the request, the call that it ends with; None: this session sampled no such
    foreign  turns of an assistant in it that this session did not sample
    version  the version that the task's trainer published last, if any
    retry    the call that it is a retry of, which has no answer to repeat; 0: none
    """

    call: int
    fence: str
    at: int
    hits: tuple[int | None, ...]
    foreign: int
    version: int | None
    retry: int


@dataclass(frozen=True, slots=True)
class Replay:
    """This was answered before. Send the same answer again; without one, parse `call.out`."""

    call: Call
    answer: bytes | None


@dataclass(frozen=True, slots=True)
class Join:
    """This is being answered now, or its process is gone. `SessionLog.joined` waits; then begin
    again, `waited`."""

    call: int
    wait: float


@dataclass(frozen=True, slots=True)
class Finalized:
    """A session's end: what the buffer made of its item, and what the rows were."""

    outcome: Outcome
    rows: int
    counts: dict[str, int]
    masked: bool
    cause: str


class SessionLog:
    """The sessions of a run.

        log = SessionLog("redis://10.0.0.5", "default")

        opened = await log.open("math", "math_0-3", "math_0")
        begun = await log.begin(opened.session, asked)          # Fresh, Replay or Join
        await log.commit(opened.session, begun.fence, call, reached)
        log.sent(opened.session, call.id, Sent.WHOLE)
        await log.finalize(opened.session, 1.0)

    redis     a URL, a client or a `Link`
    settings  of this process; by default its environment's (PENSTOCK_…)
    """

    def __init__(
        self, redis: AnyRedis | Link, run: str, settings: GatewaySettings | None = None
    ) -> None:
        buffers = BufferSettings.load()
        self.run = run
        self.settings = settings or GatewaySettings.load()
        self._link = (
            redis if isinstance(redis, Link) else Link(redis, patience=buffers.redis_patience)
        )
        self._item_bytes = buffers.max_item_bytes
        self._most_bytes = int(buffers.max_item_bytes * _PACKED)
        self._lease = int(self.settings.gateway_call_lease * 1000)
        self._idle = int(self.settings.gateway_session_idle * 1000)
        self._tasks: dict[str, Task] = {}
        self._found: Recent[tuple[float, Session]] = Recent(_MOST_FOUND)  # when it was asked for
        self._ids: Recent[tuple[str, Ids]] = Recent(  # a call's fence, and its ids
            self.settings.gateway_cache_bytes, lambda held: 4 * len(held[1])
        )
        self._notes = Notes(self._link, self._lease)

    async def open(
        self,
        task: str,
        uid: str,
        instance_id: str | int,
        *,
        round_number: int | None = None,
        slot: tuple[str, str] | None = None,
        budget: Budget = Budget(),
        sampling: dict[str, Any] | None = None,
    ) -> Opened:
        """Open the session of one trajectory; `slot` is the id and the fence of the slot that it
        is made under. The same uid again is the same session, with a further key and the sampling
        that it has. The task must have settings. `SessionsFull` if there is no room; `ItemRefused`
        if no item could have that instance or round."""
        number = round_key(round_number)
        which = int(number) if number else None
        named = canonical_json([self.run, task, instance_key(instance_id), which, uid])
        sid = blake2b(named.encode(), digest_size=12).hexdigest()
        trace = tracing.current()
        facts = {
            "uid": uid, "id": json.dumps(instance_id), "sampling": json.dumps(sampling or {}),
            "round": number,
            "slot": slot[0] if slot else "", "fence": slot[1] if slot else "",
            "most_tokens": budget.tokens, "most_turns": budget.turns,
            "most_seconds": budget.seconds,
        } | ({"trace": trace} if trace else {})  # fmt: skip
        reply = await self._task(task).run_script(
            _OPEN, sid, self.settings.gateway_most_sessions, self._idle, budget.seconds,
            *(part for fact in facts.items() for part in fact),
        )  # fmt: skip
        said = as_text(reply[0])
        if said == "full_sessions":
            most = self.settings.gateway_most_sessions
            raise SessionsFull(task, f"{most} are open (PENSTOCK_GATEWAY_MOST_SESSIONS)", _LATER)
        if said == "full_bytes":
            raise SessionsFull(task, "its groups and sessions have the bytes it may use", _LATER)
        if said != "live":
            raise SessionOver(sid, said)
        session = Session(self.run, task, sid, json.loads(reply[1]), trace)
        key = f"sk-{secrets.token_urlsafe(24)}"
        where = json.dumps([self.run, task, sid, session.sampling, session.trace])
        await self._link.command("SET", _key_of(key), where, "PX", 4 * self._idle)
        return Opened(session, key)

    async def find(self, key: str) -> Session:
        """The session of a key; `SessionUnknown`."""
        name = _key_of(key)
        at, found = self._found.use(name) or (0.0, None)
        if found is None or time.monotonic() - at > self._idle / 1000:
            said = await self._link.command("GETEX", name, "PX", 4 * self._idle)
            if said is None:
                raise SessionUnknown
            found = Session(*json.loads(said))
            self._found.put(name, (time.monotonic(), found))
        return found

    async def begin(self, session: Session, asked: Asked) -> Fresh | Replay | Join:
        """Begin a call. `SessionOver`, `BudgetSpent`, `KeyReused`."""
        fence = secrets.token_hex(6)
        key = blake2b(asked.key.encode(), digest_size=8).digest() if asked.key else b""
        args = (
            session.sid, fence, self._lease, asked.digest, int(asked.retry), key,
            int(asked.waited), int(asked.live), self._most_bytes, *asked.hashes,
        )  # fmt: skip
        reply = await self._link.run(_BEGIN, [session.root], args)
        answered = reply[0] in (b"join", b"replay")
        if answered and self._notes.has(session.root, session.sid, int(reply[1])):
            await self._notes.flush()
            reply = await self._link.run(_BEGIN, [session.root], args)
        word, rest = as_text(reply[0]), reply[1:]
        match word:
            case "unknown":
                raise SessionUnknown
            case "over":
                raise SessionOver(session.sid, as_text(rest[0]))
            case "spent":
                raise BudgetSpent(session.sid, as_text(rest[0]), float(rest[1]))
            case "reused":
                raise KeyReused
            case "join":
                return Join(int(rest[0]), int(rest[1]) / 1000)
            case "replay":
                number, record, state, answer = rest
                self._forget_other(session, int(number), as_text(record[1 : record.index(b" ")]))
                call = call_of(int(number), record, as_text(state))
                return Replay(call, zlib.decompress(answer) if answer else None)
        number, at, version, retry, *hits = rest
        self._notes.keep(session.root, session.sid, int(number), fence)
        known = [as_text(hit).split() for hit in hits]
        foreign = next((n for n, hit in enumerate(known) if hit), len(known))
        for hit in known:
            if len(hit) > 1:
                self._forget_other(session, int(hit[0]), hit[1])
        return Fresh(
            int(number), fence, int(at),
            hits=tuple(int(hit[0]) if len(hit) > 1 else None for hit in known),
            foreign=foreign, version=int(version) if as_text(version) else None,
            retry=int(retry),
        )  # fmt: skip

    async def ids(self, session: Session, call: int) -> Ids:
        """All ids of a done call: from this process's memory, else from Redis."""
        held = self._ids.use((session.root, session.sid, call))
        if held is not None:
            return held[1]
        parts: list[tuple[int, bytes]] = []
        following, fence = str(call), ""
        while following:
            reply = await self._link.run(_IDS, [session.root], [session.sid, following])
            if reply[0] is None:
                raise CallLost(session.sid, call)
            following, fence = as_text(reply[0]), fence or as_text(reply[1])
            parts += [
                (int(keep), packed) for keep, packed in zip(reply[2::2], reply[3::2], strict=True)
            ]
        ids = full_from(parts)
        self._ids.put((session.root, session.sid, call), (fence, ids))
        return ids

    async def commit(
        self, session: Session, fence: str, call: Call, reached: bytes, answer: bytes = b""
    ) -> None:
        """Store the answer. When this returns, the answer may leave.

        `reached` is the hash of the conversation with the answer in it, and `answer` what a retry
        is given again. `SessionOver`, `CallConflict`, `CallLost`, `BudgetSpent` for bytes.
        """
        if call.parent is not None and call.parent >= call.id:
            raise ValueError(f"call {call.id} cannot begin with call {call.parent}, a later one")
        record = record_of(call, fence)
        packed = zlib.compress(answer) if answer else b""
        before = await self.ids(session, call.parent) if call.parent is not None else ids_of()
        clean = call.parent is not None and call.keep == len(before)
        reply = await self._link.run(
            _COMMIT, [session.root],
            [
                session.sid, call.id, fence, self._lease, self._idle, self._most_bytes,
                len(call.out), reached if call.has_ids else b"", call.parent if clean else "",
                int(self.settings.gateway_answer_ttl * 1000),
                packed if len(packed) <= _LONGEST_ANSWER else b"", record,
            ],
        )  # fmt: skip
        said = as_text(reply)
        if said != "done":
            self._notes.forget(session.root, session.sid, call.id)
        match said:
            case "unknown":
                raise SessionUnknown
            case "over":
                raise SessionOver(session.sid, "frozen")
            case "spent":
                raise BudgetSpent(session.sid, "bytes", self._most_bytes)
            case "conflict":
                raise CallConflict(session.sid, call.id)
            case "lost":
                raise CallLost(session.sid, call.id)
        if call.has_ids:
            if clean:  # its child has all of it
                self._ids.drop((session.root, session.sid, call.parent))
            held = before[: call.keep] + call.delta + call.out
            self._ids.put((session.root, session.sid, call.id), (fence, held))

    async def joined(self, session: Session, call: int, wait: float) -> None:
        """Wait until the call is committed or given up, at most `wait` seconds."""
        await self._notes.flush()
        await self._rung(session, str(call), wait)

    def sent(self, session: Session, call: int, sent: Sent) -> None:
        """Note what the client has of a committed answer. It is noted within 0.2 s, with others."""
        self._notes.note(session.root, session.sid, call, "", str(int(sent)))

    def broke(self, session: Session, call: int, fence: str, sent: Sent = Sent.NOTHING) -> None:
        """The call has no answer. It is noted within 0.2 s, with others."""
        what = "b" if sent is Sent.NOTHING else "B"
        self._notes.note(session.root, session.sid, call, fence, what)

    async def freeze(self, session: Session, *, drain: float | None = None) -> Log:
        """No call begins any more. Those under way have `drain` seconds. What the log has then
        stays as it is."""
        await self._freeze(session, self.settings.gateway_drain if drain is None else drain)
        return (await self._read(session))[1]

    async def _freeze(self, session: Session, drain: float, idle: int | str = "") -> str:
        """`frozen`, or `final` if the session is finalized already; `alive` if it is not idle."""
        await self._notes.flush()
        deadline = deadline_in(drain)
        told = math.inf  # until then it is waited for what clients have of the last answers
        while True:
            now = time.monotonic()
            left = deadline - now
            wanted = 0 if left <= 0 else 2 if now < told else 1
            said, *rest = await self._link.run(_FREEZE, [session.root], [session.sid, wanted, idle])
            match as_text(said):
                case "unknown":
                    raise SessionUnknown
                case "draining":
                    # A process that is gone rings no bell.
                    await self._rung(session, "drained", min(left, int(rest[0]) / 1000))
                    await self._notes.flush()
                case "unsaid":
                    told = min(told, now + _TOLD)
                    await self._rung(session, "drained", min(left, told - now))
                    await self._notes.flush()
                case "frozen" | "final" | "alive" as state:
                    return state

    async def finalize(
        self,
        session: Session,
        reward: float | None,
        *,
        rewards: dict[int, float] | None = None,
        extra: dict[str, Any] | None = None,
        drain: float | None = None,
    ) -> Finalized:
        """Put the session's rows and reward into the buffer, and forget its calls, in one script.
        A repeat gets the same answer. `rewards` are by call, for the lineages that these are in;
        `extra` are further keys of the item. `RewardDiffers`, and what the buffer raises."""
        if taken := sorted(RESERVED & (extra or {}).keys()):
            raise ItemRefused(
                f"extra: {taken[0]!r} is a key of the gateway's own: name it otherwise"
            )
        drain = self.settings.gateway_drain if drain is None else drain
        said = digest([reward, sorted((rewards or {}).items())]).hex()
        return await self._finalize(session, said, reward, rewards or {}, extra or {}, drain)

    async def _finalize(
        self,
        session: Session,
        said: str,
        reward: float | None,
        rewards: dict[int, float],
        extra: dict[str, Any],
        drain: float = 0.0,
        idle: int | str = "",
    ) -> Finalized:
        while True:
            state = await self._freeze(session, drain, idle)
            if state == "alive":
                raise SessionOver(session.sid, "in use")
            facts, log = await self._read(session)
            if state == "final" or facts.get("state") == "final":
                entry, rows, snap = _NO_ENTRY, Rows(()), ""
            else:
                rows = rows_of(log, self.settings.gateway_on_hole)
                entry, rows = self._entry(session, facts, rows, reward, rewards, extra)
                snap = facts.get("snap", "0")
            answer = json.dumps([len(rows.rows), rows.counts, rows.masked, rows.cause])
            reply = await self._task(session.task).run_script(
                _FINALIZE, session.sid, snap, said, int(self.settings.gateway_tombstone * 1000),
                answer, *entry,
            )  # fmt: skip
            word, *rest = reply
            match as_text(word):
                case "moved":
                    continue
                case "unknown":
                    raise SessionUnknown
                case "differs":
                    raise RewardDiffers(session.sid)
                case "full":
                    raise BufferFull(session.task, min(max(int(rest[0]) / 1000, 0.5), 30.0))
                case "unpublished":
                    raise ItemRefused(
                        "a turn was sampled under a version that no trainer has published: publish "
                        "a version before the engines answer with it"
                    )
                case "foreign":
                    raise ItemRefused("the session's slot makes a group of another instance")
                case "final":
                    stored = as_text(rest[0])
                    code, answer = int(stored[0]), stored[1:]
                case _:
                    code = int(rest[0])
            outcome = OUTCOMES[code]
            if outcome is Outcome.LOST:
                raise SlotLost(facts.get("slot", ""))
            count, counts, masked, cause = json.loads(answer)
            return Finalized(outcome, count, counts, masked, cause)

    def _entry(
        self,
        session: Session,
        facts: dict[str, str],
        rows: Rows,
        reward: float | None,
        rewards: dict[int, float],
        extra: dict[str, Any],
    ) -> tuple[tuple[Any, ...], Rows]:
        """The arguments of the item, and the rows that are in it."""
        known = {
            "uid": facts["uid"], "instance_id": json.loads(facts["id"]), "session": session.sid,
            "sampling": json.loads(facts["sampling"]),
        }  # fmt: skip
        if "trace" in facts:  # the one of its turns
            known["traceparent"] = facts["trace"]
        try:
            item = item_of(known, rows, reward, rewards, extra)
            entry = entry_of(item, self._item_bytes)
        except ItemRefused as refused:
            if not refused.too_large:
                raise
            if extra:  # its sender may send less of it, but nobody can shorten the rows
                without = self._entry(session, facts, rows, reward, rewards, {})
                if without[1] is rows:
                    raise ItemRefused(
                        f"extra: {refused}, and without `extra` it would fit; send less in it",
                        too_large=True,
                    ) from None
                return without
            counts = {**rows.counts, "rows": 0, "masked_too_large": rows.counts["trained"]}
            rows = Rows((), {**counts, "trained": 0}, True, "too_large")
            entry = entry_of(item_of(known, rows, reward, rewards, {}), self._item_bytes)
        return (
            entry.id_json, entry.id, facts["round"], facts["slot"], facts["fence"],
            entry.lowest, entry.highest, 1, entry.uid, entry.reward, entry.payload,
        ), rows  # fmt: skip

    async def read(self, session: Session) -> Log:
        """The log as it is now, to look at. `SessionOver` if it is finalized: it is forgotten."""
        facts, log = await self._read(session)
        if facts.get("state") == "final":
            raise SessionOver(session.sid, "final")
        return log

    async def _read(self, session: Session) -> tuple[dict[str, str], Log]:
        found, records, states = await self._link.commands([
            ("HGETALL", session.key()), ("HGETALL", session.calls_key()),
            ("GET", session.states_key()),
        ])  # fmt: skip
        facts = text_fields(found)
        if not facts:
            raise SessionUnknown
        known = {int(number): record for number, record in fields_of(records).items()}
        chars = as_text(states or b"")[::2]
        calls = {
            n: call_of(n, known.get(n, b""), chars[n - 1 : n])
            for n in range(1, int(facts.get("seq", 0)) + 1)
            if known
        }
        return facts, Log(calls, "hole" in facts, facts.get("cut", ""))

    async def listed(self, task: str, most: int = 100) -> list[dict[str, Any]]:
        """Open sessions of a task, the first to be looked after first."""
        root = self._task(task).root
        key = tagged("buffer", in_run(self.run, task), "sessions")
        sids = [as_text(sid) for sid in await self._link.command("ZRANGE", key, 0, most - 1)]
        names = ("state", "uid", "id", "seq", "tokens", "bytes", "t", "hole", "cut")
        rows = await self._link.commands(
            [("HMGET", f"{root}:session:{sid}", *names) for sid in sids]
        )
        return [
            {"sid": sid, **{name: as_text(value) for name, value in zip(names, row, strict=True)
                            if value is not None}}
            for sid, row in zip(sids, rows, strict=True)
        ]  # fmt: skip

    async def sweep(
        self, task: str, name: str = "", failing: Mapping[str, str] | None = None
    ) -> int:
        """Give up calls whose process is gone, and sessions that are idle, in bounded steps.
        Returns how many sessions were given up.

        A gateway gives its name, and why engines fail it: so people see that it lives.
        """
        told = [name, json.dumps(failing or {})]
        idle = await self._link.run(_SWEEP, [self._task(task).root], [self._idle, _SWEPT, *told])
        for sid in map(as_text, idle):
            session = Session(self.run, task, sid, {})
            try:
                await self._finalize(session, "idle", None, {}, {}, idle=self._idle)
            except (GatewayError, RolloutBufferError) as why:
                log.warning(
                    "a session was not put as lost", extra={"session": sid, "why": str(why)}
                )
            else:
                log.warning("a session was idle: it is put as lost", extra={"session": sid})
        return len(idle)

    async def leave(self, task: str, name: str) -> None:
        """A gateway ends in order: nobody misses it."""
        await self._link.command("HDEL", tagged("buffer", in_run(self.run, task), "gateways"), name)

    async def aclose(self) -> None:
        """Note what is left to note, and close this loop's connections."""
        await self._notes.aclose()
        await self._link.aclose()

    def _forget_other(self, session: Session, call: int, fence: str) -> None:
        """Forget the ids of a call of this number with another fence. Redis lost that one, or it is
        of an earlier session of this name."""
        where = (session.root, session.sid, call)
        held = self._ids.get(where)
        if held is not None and held[0] != fence:
            self._ids.drop(where)

    async def _rung(self, session: Session, what: str, wait: float) -> None:
        """Wait for a bell of the session."""
        await self._link.rung(session.bell_key(what), wait)

    def _task(self, name: str) -> Task:
        if name not in self._tasks:
            self._tasks[name] = Task(self._link, self.run, name)
        return self._tasks[name]


def _key_of(key: str) -> str:
    return f"penstock:gateway:key:{blake2b(key.encode(), digest_size=16).hexdigest()}"
