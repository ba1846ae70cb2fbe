"""A gate's scripts under a clock that a test sets.

The scripts read the time once, from Redis. Here that one call reads a key instead;
everything else is the product's own text.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ground.keys import tagged
from ground.lua import Command
from limiter.commands import NOT_PLAIN, SCRIPTS, GateCommands
from limiter.terms import Terms

_TIME = "call('TIME')"
_START = 1_700_000_000_000_000

Permit = tuple[str, int, int | str]


class ClockedGate:
    """One gate, called by its scripts alone, by any number of pretended processes."""

    def __init__(self, redis: Any, terms: Terms, name: str = "g") -> None:
        self.redis = redis
        self.terms = terms
        self.name = name
        self.now = _START
        self._clock = f"test:clock:{{{name}}}"  # on the gate's node of a Cluster
        self._calls = itertools.count()
        self._seen: dict[str, str] = {}
        self._own: dict[str, list[tuple[str, int]]] = {}

    def commands(self, process: str) -> GateCommands:
        return GateCommands(self.name, self.terms, process)

    def on_path(self, process: str, command: Callable[[GateCommands], Command]) -> list[Any]:
        """The reply to what has a plain form; in the full one if the gate asks for it."""
        commands = self.commands(process)
        reply = self.run(command(commands))
        if reply == NOT_PLAIN:
            commands.use_full()
            reply = self.run(command(commands))
        return reply

    def run(self, command: Command) -> list[Any]:
        """The reply to a command, at the time of this gate's clock."""
        source = SCRIPTS[command[1]].source
        assert source.count(_TIME) == 1, "a script reads the clock once"
        self.redis.hset(
            self._clock, mapping={"s": self.now // 1_000_000, "us": self.now % 1_000_000}
        )
        text = source.replace(_TIME, f"call('HMGET', '{self._clock}', 's', 'us')")
        reply: list[Any] = self.redis.execute_command("EVAL", text, *command[2:])
        if reply == NOT_PLAIN:
            return reply
        assert int(reply[0]) == self.now
        self._own.setdefault(command[12], []).extend(_grants(reply[2]))
        return reply

    def acquire(
        self,
        process: str,
        *ids: str,
        lane: int | str = 0,
        term: float = 1.0,
        alive: float = 1.0,
        join: bool = True,
    ) -> list[int]:
        """For each id its fence, or minus its place in the line, or 0."""
        rows: list[tuple[str, int | str, str, int | str]] = [
            (id, lane, "", int(term * 1e6)) for id in ids
        ]
        return self.ask(process, rows, alive=alive, join=join)[0]

    def ask(
        self,
        process: str,
        rows: list[tuple[str, int | str, str, int | str]],
        *,
        alive: float = 1.0,
        join: bool = True,
        released: Sequence[tuple[str, int]] = (),
    ) -> tuple[list[int], list[str]]:
        reply = self.on_path(process, lambda commands: commands.acquire(
            rows, int(alive * 1e6), join=join, released=released,
            weighs=any(isinstance(term, str) for *_, term in rows),
            shares=any(isinstance(lane, str) for _, lane, *_ in rows),
        ))  # fmt: skip
        return reply[7::2], [text(s) for s in reply[8::2]]

    def release(self, process: str, *permits: tuple[str, int | str]) -> int:
        return int(self.on_path(process, lambda commands: commands.release(permits))[3])

    def renew(self, process: str, *permits: Permit, alive: float = 1.0) -> list[bool]:
        reply = self.run(self.commands(process).renew(permits, int(alive * 1e6)))
        return [bool(int(held)) for held in reply[4:]]

    def cancel(self, process: str, *ids: str, counter: str = "cancelled") -> list[int]:
        return [int(place) for place in self.run(self.commands(process).cancel(counter, ids))[7:]]

    def revoke(self, process: str, id: str) -> bool:
        call = f"call:{next(self._calls)}"
        return bool(self.run(self.commands(process).revoke(id, call))[4])

    def sweep(self, process: str) -> int:
        """Microseconds after which this process is to look again; -1 for never."""
        return int(self.on_path(process, lambda commands: commands.sweep())[1])

    def configure(self, process: str, **changes: str) -> None:
        self.run(self.commands(process).configure(changes))

    def letters(self, process: str) -> list[tuple[str, int]]:
        """The grants (id, fence) that came to a process since asked last, by reply or mail."""
        entries = self.redis.xrange(self.commands(process).inbox, self._unseen(process))
        return self._read(process, entries)

    def forget_letters(self) -> None:
        self._seen.clear()
        self._own.clear()

    # What anybody sees with redis-cli

    @property
    def leases(self) -> dict[str, int]:
        return _leases(self.redis.zrange(self._key("leases"), 0, -1, withscores=True))

    @property
    def holders(self) -> dict[str, int]:
        """The fences of the permits, by their ids."""
        found = self.redis.hgetall(self._key("holders"))
        return {text(id): int(text(holder).split("|")[0]) for id, holder in found.items()}

    @property
    def costs(self) -> dict[str, int]:
        """The units of the permits that take more than one."""
        found = self.redis.hgetall(self._key("costs"))
        return {text(id): int(units) for id, units in found.items()}

    @property
    def line(self) -> list[str]:
        return [text(id) for id in self.redis.zrange(self._key("queue"), 0, -1)]

    def turns(self, lane: int) -> dict[str, float]:
        """The places of a lane's shares."""
        return self._places(f"shares:{lane}")

    def idle(self, lane: int) -> dict[str, float]:
        """How far the shares came that wait in this lane no more."""
        return self._places(f"idle:{lane}")

    @property
    def fields(self) -> dict[str, str]:
        found = self.redis.hgetall(self._key(""))
        return {text(field): text(value) for field, value in found.items()}

    def look(self, processes: Sequence[str]) -> "Sight":
        """All of it at once."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.zrange(self._key("leases"), 0, -1, withscores=True)
        pipe.zrange(self._key("queue"), 0, -1)
        pipe.hgetall(self._key(""))
        pipe.hlen(self._key("holders"))
        pipe.hlen(self._key("waiters"))
        pipe.zrange(self._key("order"), 0, -1)
        for process in processes:
            pipe.xrange(self.commands(process).inbox, self._unseen(process))
        leases, line, fields, holders, waiters, apart, *inboxes = pipe.execute()
        return Sight(
            leases=_leases(leases),
            line=[text(id) for id in line],
            apart=[text(member).rpartition("|")[2] for member in apart],
            fields={text(field): text(value) for field, value in fields.items()},
            leftovers=abs(holders - len(leases)) + abs(waiters - len(line) - len(apart)),
            letters={p: self._read(p, box) for p, box in zip(processes, inboxes, strict=True)},
        )

    def _unseen(self, process: str) -> str:
        return f"({self._seen[process]}" if process in self._seen else "-"

    def _read(self, process: str, entries: list[Any]) -> list[tuple[str, int]]:
        if entries:
            self._seen[process] = text(entries[-1][0])
        mailed = [grant for _, fields in entries for grant in _grants(fields.get(b"grants", b""))]
        return self._own.pop(process, []) + mailed

    def _places(self, part: str) -> dict[str, float]:
        found = self.redis.zrange(self._key(part), 0, -1, withscores=True)
        return {text(share): place for share, place in found}

    def _key(self, part: str) -> str:
        return tagged("gate", self.name, part)


class EitherForm(ClockedGate):
    """Processes of both forms at once, by turns of a dice: a plain gate makes no difference."""

    def __init__(self, redis: Any, terms: Terms, name: str = "g") -> None:
        super().__init__(redis, terms, name)
        self._draw = Random(name)

    def commands(self, process: str) -> GateCommands:
        commands = super().commands(process)
        if self._draw.random() < 0.5:
            commands.use_full()
        return commands


@dataclass(frozen=True)
class Sight:
    """A gate as redis-cli shows it, and the grants that came to each process since."""

    leases: dict[str, int]
    line: list[str]
    apart: list[str]
    """Those who wait with a share."""
    fields: dict[str, str]
    leftovers: int
    """Records of permits and waiters that are none any more."""
    letters: dict[str, list[tuple[str, int]]]


def _leases(rows: list[Any]) -> dict[str, int]:
    return {text(id): int(ends) for id, ends in rows}


def _grants(words: bytes | str) -> list[tuple[str, int]]:
    parts = text(words).split()
    return [(id, int(fence)) for id, fence in zip(parts[::2], parts[1::2], strict=True)]


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
