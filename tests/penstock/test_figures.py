"""What the scripts count in Redis is what Prometheus is told."""

import re

from buffer.counters import COUNTERS as OF_THE_BUFFER
from penstock.fleet.figures import _GATE_TOTALS, _JOB_OUTCOMES, _STEP_TOTALS
from tests.architecture.source import ROOT
from worker.lifecycle.registry.records import COUNTERS as OF_SANDBOXES


def counted(folder: str, verb: str = "count") -> set[str]:
    """The counters that scripts name outright."""
    text = "".join(file.read_text() for file in sorted((ROOT / folder).glob("*.lua")))
    found = set(re.findall(rf"\b{verb}\('(\w+)'", text))
    in_tables = re.findall(r"\bcounts(?: = \{ |\.)(\w+) =", text)
    by_word = re.search(r"\bCOUNTED = \{(.*)\}", text)
    return found | {*in_tables, *re.findall(r"'(\w+)'", by_word[1] if by_word else "")}


def test_every_counter_of_a_gate() -> None:
    steps = {"held_us" if name == "held_seconds" else name for name in _STEP_TOTALS}
    assert counted("limiter/lua") | {"granted", "released", "timeouts", "cancelled"} == (
        set(_GATE_TOTALS) | steps
    )


def test_every_counter_of_a_queue() -> None:
    # A job that is taken out of the line ends as it is told to.
    told = {"stopped", "retried"}
    # Of jobs whose end is recorded, and of those that a claim has written down with its fence.
    batched = {"finished", "failed", "masked", "claimed"}
    assert counted("worker/concurrent/lua", "tally") | told | batched == set(_JOB_OUTCOMES)


def test_every_counter_of_the_buffer() -> None:
    life = (ROOT / "buffer/lua/group_life.lua").read_text()
    written = re.search(r"\{('stored'.*)\}", (ROOT / "buffer/lua/store.lua").read_text())
    assert written is not None
    ended = {"consumed", "invalid", "expired", "quarantined"}
    assert all(f"'{state}'" in life for state in ("consumed", "quarantined"))
    # These are shown under other names, or are what other figures are made of.
    others = {"bytes", "used_bytes", "quarantine_bytes", "masked_tokens", "dropped_ms",
              "dropped_timed", "dropped_", "slots_",
              "slots_granted", "admission_waited_ms", "admissions_waited"}  # fmt: skip
    assert (counted("buffer/lua") | {"stale", "stale_items"}) - others | ended | {
        f"{state}_items" for state in ended
    } | set(re.findall(r"\w+", written[1])) == set(OF_THE_BUFFER)


def test_every_counter_of_session_sandboxes() -> None:
    named = counted("worker/lifecycle/lua") | {
        "handed_over",
        "killed",
        "ended",
        "strays",
        "settled",
    }
    assert named == set(OF_SANDBOXES)
