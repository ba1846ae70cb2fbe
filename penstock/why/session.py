"""A session of the gateway is worth what it is for these reasons: its turns, its rows, and how it
ended."""

import json
from collections.abc import Iterator, Mapping

from buffer import RolloutBuffer
from buffer.writer import OUTCOMES
from gateway.log import Session, SessionLog
from gateway.show import described, lines
from gateway.training_rows import rows_of
from ground.lua import text_fields
from penstock.fleet import FleetReader
from penstock.fleet.lines import line_says
from penstock.why.item import explain_item
from penstock.why.model import Explained, Fact, Look, many

_CUTS = {"idle": "it was idle for too long", "open": "turns were under way when it was frozen"}
_CAUSES = {
    "hole": "its client has an answer that the log lost",
    "too_large": "its rows are larger than PENSTOCK_MAX_ITEM_BYTES",
    **_CUTS,
}
_SHOWN_TURNS = 100
_ENGINE = "engine-"  # as gateway/engines/pool.py names gates; it brings an HTTP client


async def explain_session(
    reader: FleetReader, log: SessionLog, buffer: RolloutBuffer, sid: str
) -> Explained | None:
    """A session by its id; None if the task knows nothing of it."""
    session = Session(reader.run, buffer.task, sid)
    facts = text_fields(await reader.link.command("HGETALL", session.key()))
    if not facts:
        return None
    if facts.get("state") == "final":
        return await _ended(reader, buffer, sid, facts)
    found = await log.read(session)
    rows = rows_of(found, log.settings.gateway_on_hole)
    about = described(found, rows)
    said = [Fact("reward", "none yet: who opened it gives one when it ends")]
    said += [*_facts(facts), *_rows(rows.counts, rows.masked, rows.cause, len(rows.rows))]
    said += [Fact("turn", line) for line in [*lines(about["calls"])][:_SHOWN_TURNS]]
    waits = [call for call in about["calls"] if call["state"] == "open"]
    if waits:
        until = "until an engine answers, or the lease of the gateway's call ends"
        said.append(Fact("waits", f"{many(len(waits), 'turn')} under way, {until}"))
        said += await _engines(reader)
    look: Look = "warn" if rows.masked else ""
    masked = f", and would be masked: {_cause(rows.cause)}" if rows.masked else ""
    sentence = f"it has no reward yet, it is {facts.get('state')}{masked}"
    return Explained("session", sid, buffer.task, sentence, look, tuple(said))


async def _engines(reader: FleetReader) -> list[Fact]:
    """The gates of engines that turns wait at; which of them is a session's, its gateway knows."""
    gates, _ = await reader.gates()
    busy = [one for one in gates if one.name.startswith(_ENGINE) and one.waiting]
    return [Fact("engine", line_says(one, ()), "warn", "gate", one.name) for one in busy]


async def _ended(
    reader: FleetReader, buffer: RolloutBuffer, sid: str, facts: Mapping[str, str]
) -> Explained:
    """Explain a session whose rows are in the buffer: its calls are gone, and its item has the
    reward."""
    code, answer = int(facts["answer"][0]), json.loads(facts["answer"][1:])
    rows, counts, masked, cause = answer
    outcome = OUTCOMES[code]
    said = [Fact("put", f"its item is {outcome}", "" if code in (1, 2) else "warn")]
    said += [*_facts(facts), *_rows(counts, masked, cause, rows)]
    item = await _item(reader, buffer, facts)
    if item is None:
        gone = "its item is not in the buffer any more, which alone had the reward"
        return Explained("session", sid, buffer.task, gone, "warn", tuple(said))
    said = [*item.facts, *said]
    return Explained("session", sid, buffer.task, item.sentence, item.look, tuple(said), item.jobs)


async def _item(
    reader: FleetReader, buffer: RolloutBuffer, facts: Mapping[str, str]
) -> Explained | None:
    uid, instance = facts.get("uid", ""), str(json.loads(facts.get("id", '""')))
    if facts.get("round"):
        return await explain_item(reader, buffer, instance, int(facts["round"]), uid)
    for name, number in await buffer.catalog.holding(uid):
        if name == instance:
            return await explain_item(reader, buffer, name, number, uid)
    return None


def _facts(facts: Mapping[str, str]) -> Iterator[Fact]:
    yield Fact("state", facts.get("state", ""))
    yield Fact("item", facts.get("uid", ""), "", "item", facts.get("uid", ""))
    bounds = [
        f"{facts.get(used, '0')} of {facts[most]} {name}"
        for used, most, name in (
            ("tokens", "most_tokens", "tokens"),
            ("seq", "most_turns", "turns"),
        )
        if facts.get(most, "0") not in ("", "0")
    ]
    if bounds:
        yield Fact("budget", ", ".join(bounds))
    if cut := facts.get("cut"):
        yield Fact("cut", _CUTS.get(cut, cut), "warn")
    if "hole" in facts:
        yield Fact("hole", _CAUSES["hole"], "warn")


def _rows(counts: Mapping[str, int], masked: bool, cause: str, rows: int) -> Iterator[Fact]:
    trained, sampled = counts.get("trained", 0), counts.get("sampled", 0)
    said = f"{many(rows, 'row')}, {trained:,} of {sampled:,} sampled tokens are trained on"
    yield Fact("rows", said, "warn" if masked else "")
    if masked:
        yield Fact("masked", _cause(cause), "warn")
    for name, tokens in counts.items():
        if name.startswith("masked_") and tokens:
            yield Fact(
                "not trained on", f"{tokens:,} tokens: {_cause(name.removeprefix('masked_'))}"
            )


def _cause(cause: str) -> str:
    return f"{cause}, {_CAUSES[cause]}" if cause in _CAUSES else cause
