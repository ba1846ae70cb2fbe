"""The errors of a gate.

PenstockError
└── GateError
    ├── LimitTimeout       nobody gave way in time; says who holds, and the place in line
    ├── UnknownGate        no gate of that name; names those that there are
    ├── UnknownPermit      the gate has no such permit in flight
    ├── GateInUse          it cannot be removed now
    ├── GateUnavailable    Redis did not answer, so nothing was granted
    └── PermitLost         the lease ran out, the server lost it and someone else got the room,
                           or an operator revoked it
"""

from ground import PenstockError


class GateError(PenstockError):
    """The root of everything a gate raises."""


class LimitTimeout(GateError):
    """No permit came free within the timeout."""

    def __init__(
        self,
        gate: str,
        *,
        waited: float,
        limit: str,
        in_flight: int,
        place: int,
        holders: list[str],
        paused: bool = False,
    ) -> None:
        by = f" by {', '.join(holders)}" if holders else ""
        line = f"place {place} in line" if place else "not in line any more"
        super().__init__(
            f"gate {gate!r}: no permit within {waited:.3g} s; "
            f"{in_flight} of {limit} in flight{by}; {line}. "
            + (
                f"The gate is paused: penstock limits resume {gate}"
                if paused
                else f"Raise the limit (penstock limits set {gate} --gate-limit N) or the timeout; "
                f"if a holder is dead, take its permit back (penstock limits revoke {gate} PERMIT)"
            )
        )
        self.gate = gate
        self.in_flight = in_flight
        self.place = place
        self.holders = holders
        self.paused = paused


class GateInUse(GateError):
    """The gate cannot be removed: somebody holds a permit of it, or waits for one."""

    def __init__(self, gate: str, in_flight: int, waiting: int) -> None:
        super().__init__(
            f"gate {gate!r} is in use: {in_flight} permits in flight, {waiting} waiting. Remove it "
            "when they are done, or with --force"
        )


class UnknownGate(GateError):
    """Nobody has made a gate of that name."""

    def __init__(self, gate: str, known: list[str]) -> None:
        there = f"there are {', '.join(known)}" if known else "there are none yet"
        super().__init__(
            f"no gate is called {gate!r}; {there} (penstock limits ls). Make it: "
            f"penstock limits set {gate} --gate-limit N"
        )
        self.gate = gate


class UnknownPermit(GateError):
    """The gate has no such permit in flight: it was given back, its lease ended, or never was."""

    def __init__(self, gate: str, permit: str) -> None:
        super().__init__(
            f"gate {gate!r} has no permit {permit!r} in flight: it was given back, its lease "
            f"ended, or the id is wrong. See those there are: penstock limits permits {gate}"
        )
        self.gate = gate
        self.permit = permit


def spoiled(gate: str, why: object) -> GateError:
    """The error of a gate whose keys hold what no gate writes."""
    return GateError(
        f"gate {gate!r}: {why}: somebody else has written to its keys; remove them, and its "
        f"processes make it again: penstock limits rm {gate} --force"
    )


def refused(gate: str, why: str) -> GateError:
    """The error of a gate whose script Redis refused: of a spoiled one, if a key has another
    type."""
    return spoiled(gate, why) if "WRONGTYPE" in why else GateError(f"gate {gate!r}: {why}")


class GateUnavailable(GateError):
    """Redis could not be asked; no permit was granted."""

    def __init__(self, gate: str, where: str, why: object) -> None:
        super().__init__(
            f"gate {gate!r}: Redis at {where} could not be asked ({why}); nothing was granted. "
            "Is it up, and is PENSTOCK_REDIS_URL right?"
        )
        self.gate = gate


class PermitLost(GateError):
    """The permit's lease ended while it was held, or an operator revoked it."""

    def __init__(self, gate: str, permit: str) -> None:
        super().__init__(
            f"gate {gate!r}: permit {permit} was lost before it was released: its lease was not "
            "renewed in time, Redis lost it and the room was given to another, or an operator "
            "revoked it. What it "
            "covered may now run beside someone else's work"
        )
        self.gate = gate
        self.permit = permit
