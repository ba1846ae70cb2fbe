"""A session sandbox is as it is for these reasons: whose it is, what it waits for, and why it does
not end."""

from penstock.fleet import FleetReader
from penstock.fleet.model import Sandbox
from penstock.why.model import Explained, Fact, Look, cut, seconds

_MEANS = {
    "WAITING": "its opener waits for a STARTING permit",
    "CREATING": "its provider is asked for it",
    "STARTING": "its provider has made it, and it is not ready yet",
    "READY": "it is ready",
    "TERMINATING": "it is being ended",
}


async def explain_sandboxes(reader: FleetReader, id: str) -> list[Explained]:
    """Explain sandboxes of that name, of that id at their provider, or of such a session."""
    now = await reader.now()
    found = [box for box in await reader.sandboxes() if id in (box.name, box.id, box.session)]
    return [_explained(box, now) for box in found if id]


def _explained(box: Sandbox, now: float) -> Explained:
    said = _MEANS.get(box.state, box.state)
    facts = [Fact("state", f"{box.state}: {said}", "bad" if box.failing else "")]
    if box.waits:
        facts.append(Fact("waits", box.waits, "warn"))
    facts += [
        Fact(what, value)
        for what, value in (
            ("session", box.session), ("owner", box.owner), ("provider", box.provider),
            ("its id there", box.id), ("run", box.run), ("age", seconds(max(0.0, now - box.since))),
        )
        if value
    ]  # fmt: skip
    if box.starting:
        facts.append(Fact("permit", "it holds a STARTING permit, until it is ready or gone"))
    if box.tries:
        facts.append(Fact("tries", f"{box.tries} to end it", "warn"))
    if box.trouble:
        facts.append(Fact("trouble", cut(box.trouble), "bad"))
    waits = f": {box.waits}" if box.waits else f": {box.trouble}" if box.trouble else ""
    look: Look = "bad" if box.trouble else "warn" if box.waits else "well"
    return Explained("sandbox", box.name, box.run, f"{said}{waits}", look, tuple(facts))
