"""A gate in words, for a table's cells: its limit and rate, its permits, its state."""

from limiter import GateStatus
from limiter.terms import as_whole


def figure(number: float, form: str = "g") -> str:
    """A whole number as it was given, with all its digits; any other in this form."""
    whole = as_whole(number)
    return f"{whole}" if isinstance(whole, int) else format(whole, form)


def limit_of(gate: GateStatus) -> str:
    """The gate's limit; of a gate that finds it, with the bound above."""
    bounds = gate.adaptive
    if gate.limit is None:
        return ""
    adapts = bounds is not None and bounds.adapts == "limit"
    return f"{gate.limit}/{figure(bounds.max)}" if bounds and adapts else f"{gate.limit}"


def rate_of(gate: GateStatus) -> str:
    """The gate's rate, and what else it earns per second."""
    bounds = gate.adaptive
    shown = "" if gate.rate is None else figure(gate.rate, ".4g")
    if bounds and bounds.adapts == "rate":
        shown += f"/{figure(bounds.max)}"
    others = [f"{figure(amount.rate, '.4g')} {name}" for name, amount in gate.amounts.items()]
    return ", ".join([shown, *others] if shown else others)


def in_flight_of(gate: GateStatus) -> str:
    """The gate's permits in flight, and what they cost if that is more than one each."""
    return f"{gate.in_flight}" + (f" ({gate.cost})" if gate.cost > gate.in_flight else "")


def shares_of(gate: GateStatus) -> str:
    """A text behind the waiters: how many shares wait, if there are several."""
    shares = gate.shares.waiting if gate.shares else 0
    return f" ({shares} shares)" if shares > 1 else ""


def state_of(gate: GateStatus) -> str:
    """Open, full, held or paused; of a gate that adapts with its latest change."""
    full = gate.limit is not None and gate.cost >= gate.limit
    bounds = gate.adaptive
    held = bounds is not None and bounds.held > 0
    state = "paused" if gate.paused else "held" if held else "full" if full else "open"
    if bounds is None or bounds.latest is None:
        return state
    latest = bounds.latest
    return f"{state} {'v' if latest.after < latest.before else '^'} {latest.ago:.0f}s {latest.why}"
