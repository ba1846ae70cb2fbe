"""A gate's scripts as commands: which keys, which arguments, in which order.

The headers of `limiter/lua/*.lua` say the same; this is their only caller.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from ground.keys import tagged
from ground.lua import Command, Script, load_script
from limiter.terms import Terms

# The scripts on a permit's path have a plain form, which meets no costs, shares or adaptive limits.
_PLAIN = [load_script("limiter", name) for name in ("acquire", "release", "sweep")]
_FULL = [load_script("limiter", name, "full") for name in ("acquire", "release", "sweep")]
_CANCEL, _RENEW, _REVOKE, _CONFIGURE, _STATUS = _REST = [
    load_script("limiter", name, "full")
    for name in ("cancel", "renew", "revoke", "configure", "status")
]
INDEX = "penstock:gates"
SCRIPTS = {script.sha: script for script in (*_PLAIN, *_FULL, *_REST)}
NOT_PLAIN = b"full"  # what a plain form replies if the gate needs the full one


class GateCommands:
    """The commands that one process sends to one gate."""

    def __init__(self, name: str, terms: Terms, process: str) -> None:
        self.inbox = tagged("gate", name, f"inbox:{process}")
        self.keys = tuple(
            tagged("gate", name, part)
            for part in ("", "leases", "holders", "queue", "waiters", "alive")
        )
        self._name = name
        self.head = (*terms.args(), process)
        self._use(_PLAIN if terms.plain else _FULL)

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The keys of every gate, and those that some have, but for the ones of its lanes."""
        beside = ("changes", "costs", "order", "weights")
        return (*self.keys, *(tagged("gate", self._name, part) for part in beside))

    def use_full(self) -> None:
        """Use the full form from now on: the gate may be of any kind."""
        self._use(_FULL)

    def _use(self, path: list[Script]) -> None:
        self._acquire, self._release, self._sweep = (
            script.command(self.keys, self.head) for script in path
        )
        self.plain = path is _PLAIN

    def acquire(
        self,
        asks: Iterable[tuple[Any, ...]],
        alive_us: int,
        *,
        join: bool,
        weighs: bool = False,
        shares: bool = False,
        released: Sequence[tuple[str, int | str]] = (),
        any_kind: bool = False,
    ) -> Command:
        """Each ask is its id, lane and, if some have one (`shares`), its share; then its score, ''
        if new. Its term in microseconds and, if some have one (`weighs`), its cost follow. With
        `any_kind` it has the full form, which no gate refuses."""
        if (weighs or shares) and self.plain:
            self.use_full()
        how = int(join) + 2 * weighs + 4 * shares
        begins = _FULL[0].command(self.keys, self.head) if any_kind else self._acquire
        return (*begins, alive_us, how, len(released), *chain(*released, *asks))

    def release(self, permits: Iterable[tuple[str, int | str]]) -> Command:
        """Each permit is its id and its fence, which a report may follow (`adapt.lua`)."""
        return (*self._release, *_flat(permits))

    def give_back(self, permit: str, receipt: int | str) -> Command:
        """Release one permit, at a gate of any kind."""
        return self._command(_FULL[1], permit, receipt)

    def cancel(self, counter: str, ids: Iterable[str]) -> Command:
        return self._command(_CANCEL, counter, *ids)

    def renew(self, permits: Iterable[tuple[str, int, int | str]], alive_us: int) -> Command:
        """Each permit is its id, fence, and its term in microseconds with its cost."""
        return self._command(_RENEW, alive_us, *_flat(permits))

    def revoke(self, id: str, call: str) -> Command:
        """Revoke permits. `call` is of this call alone: the engine may send it twice."""
        return self._command(_REVOKE, id, call)

    def sweep(self) -> Command:
        return self._sweep

    def configure(self, changes: dict[str, str]) -> Command:
        return self._command(_CONFIGURE, *_flat(changes.items()))

    def enlist(self) -> Command:
        """Enter the gate into the set of those in use."""
        return ("SADD", INDEX, self._name)

    def status(self) -> Command:
        return self._command(_STATUS)

    def _command(self, script: Script, *args: Any) -> Command:
        return (*script.command(self.keys, self.head), *args)


def _flat(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [part for row in rows for part in row]
