"""A gate's scripts as commands: which keys, which arguments, in which order.

The headers of `limiter/lua/*.lua` say the same; this is their only caller.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from ground import Script, load_script, tagged
from ground.lua import Command
from limiter.terms import Terms

_ACQUIRE, _RELEASE, _CANCEL, _RENEW, _REVOKE, _SWEEP, _CONFIGURE, _STATUS = (
    load_script("limiter", name)
    for name in ("acquire", "release", "cancel", "renew", "revoke", "sweep", "configure", "status")
)
INDEX = "penstock:gates"
SCRIPTS = {
    script.sha: script
    for script in (
        _ACQUIRE, _RELEASE, _CANCEL, _RENEW, _REVOKE, _SWEEP, _CONFIGURE, _STATUS,
    )
}  # fmt: skip


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
        self._begins = {each.sha: each.command(self.keys, self.head) for each in SCRIPTS.values()}

    def acquire(
        self,
        asks: Iterable[tuple[str, int | str, str, int | str]],
        alive_us: int,
        *,
        join: bool,
        weighs: bool = False,
        shares: bool = False,
        released: Sequence[tuple[str, int | str]] = (),
    ) -> Command:
        """Each ask: id, lane and, if some have one (`shares`), its share; score ('' if new); term
        in microseconds and, if some have one (`weighs`), its cost."""
        rows = chain(*released, *asks)
        how = int(join) + 2 * weighs + 4 * shares
        return (*self._begins[_ACQUIRE.sha], alive_us, how, len(released), *rows)

    def release(self, permits: Iterable[tuple[str, int | str]]) -> Command:
        """Each permit is its id and its fence, which a report may follow (`step.lua`)."""
        return self._command(_RELEASE, *_flat(permits))

    def cancel(self, counter: str, ids: Iterable[str]) -> Command:
        return self._command(_CANCEL, counter, *ids)

    def renew(self, permits: Iterable[tuple[str, int, int | str]], alive_us: int) -> Command:
        """Each permit is its id, fence, and its term in microseconds with its cost."""
        return self._command(_RENEW, alive_us, *_flat(permits))

    def revoke(self, id: str, call: str) -> Command:
        """`call` is of this call alone: the engine may send it twice."""
        return self._command(_REVOKE, id, call)

    def sweep(self) -> Command:
        return self._command(_SWEEP)

    def configure(self, changes: dict[str, str]) -> Command:
        return self._command(_CONFIGURE, *_flat(changes.items()))

    def enlist(self) -> Command:
        """Enter the gate into the set of those in use."""
        return ("SADD", INDEX, self._name)

    def status(self) -> Command:
        return self._command(_STATUS)

    def _command(self, script: Script, *args: Any) -> Command:
        return (*self._begins[script.sha], *args)


def _flat(rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [part for row in rows for part in row]
