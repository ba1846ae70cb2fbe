"""Whether a gate stands as this process's gate objects were made."""

import logging

from limiter.terms import Manner, Terms

log = logging.getLogger("penstock.limiter")


class Agreement:
    """What stands in Redis wins, or is overwritten once; a difference is never silent."""

    def __init__(self, name: str, manner: Manner) -> None:
        self._name = name
        self._pace = manner.pace
        self._paces = {manner.pace}  # all that were met, so that each difference is told once
        self.made = 0  # when the gate in Redis was made: another time, another gate
        self._met: dict[Terms, bool] = {}  # and whether they are to be enforced
        self.unsettled: dict[Terms, bool] = {}  # to be compared, or enforced

    def meet(self, terms: Terms, manner: Manner) -> None:
        """Note what a gate object was made with; a process may have several for one gate."""
        if manner.enforce:
            self._met = dict.fromkeys(self._met, False)  # the last to enforce prevails
        if manner.enforce or terms not in self._met:
            self._met[terms] = self.unsettled[terms] = manner.enforce
        if manner.pace not in self._paces:
            log.warning(
                "gate %r: this process keeps it with lease, heartbeat, patience = %s; another gate "
                "object's %s is ignored: give them all the same",
                self._name, self._pace, manner.pace,
            )  # fmt: skip
        self._paces.add(manner.pace)

    @property
    def enforcing(self) -> bool:
        return any(self.unsettled.values())

    def to_enforce(self) -> list[Terms]:
        return [terms for terms, enforce in self.unsettled.items() if enforce]

    def enforced(self, terms: Terms) -> None:
        self.unsettled.pop(terms, None)

    def see(self, made: int) -> None:
        """A gate made anew after a loss of data has forgotten what was enforced."""
        if self.made not in (0, made):
            self.unsettled = dict(self._met)
        self.made = made

    def compare(self, found: list[bytes]) -> None:
        theirs = tuple(float(text) if text else None for text in found)
        for terms in [terms for terms, enforce in self.unsettled.items() if not enforce]:
            del self.unsettled[terms]
            ours = tuple(float(text) if text else None for text in terms.args())
            if ours != theirs:
                log.warning(
                    "gate %r: this process was made with limit, rate, burst = %s, the gate has %s "
                    "and keeps it; change it with `penstock limits set`, or construct it with "
                    "enforce=True",
                    self._name, ours, theirs,
                )  # fmt: skip
