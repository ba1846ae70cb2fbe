"""The accounts of journals in which all is well, and of the same ones with a promise broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proof.account import Accounts, Thing

Journals = dict[str, list[dict[str, Any]]]
UID = "generator-0-7-0-55"


def item(**changed: Any) -> dict[str, Any]:
    return {"uid": UID, "session": "s", "wrong": 0, "trained": {"1": 1}, "cause": ""} | changed


def journals() -> Journals:
    """One group, from its slot to its batch, while another process is killed."""
    value = str(sum(UID.encode()))
    lines = {
        "generator-0": [
            {"what": "has a slot", "slot": "slot", "group": "generator-0-7"},
            {"what": "has a permit", "fence": 100, "cost": 2},
            {"what": "has a session", "session": "s", "uid": UID},
            {"what": "has a sandbox", "name": "box"},
            {"what": "asks", "session": "s", "turn": 0},
            {"what": "has an answer", "session": "s", "turn": 0, "id": "s-1"},
            {"what": "leaves a sandbox", "name": "box"},
            {"what": "returns a permit", "fence": 100},
            {"what": "submits", "job": UID},
            {"what": "has a result", "job": UID, "ok": True, "kind": "none", "value": value},
            {"what": "finalizes", "session": "s", "uid": UID},
            {"what": "finalized", "uid": UID, "outcome": "stored"},
            {"what": "made", "slot": "slot"},
        ],
        "trainer-0": [
            {"what": "publishes", "version": 3, "lead": True},
            {"what": "published", "version": 3, "lead": True},
            {"what": "took", "receipt": "r", "version": 3, "ages": [0],
             "groups": [["generator-0-7", [item()]]]},
            {"what": "acknowledged", "receipt": "r"},
            {"what": "asks again", "job": UID},
            {"what": "has it again", "job": UID, "same": True, "said": "1 a"},
        ],
        "observer-0": [
            {"what": "version", "version": 3},
            {"what": "batch", "receipt": "r", "state": "consumed",
             "groups": {"generator-0-7": "r"}},
        ],
    }  # fmt: skip
    clock = iter(range(1000))
    found: Journals = {
        name: [{"at": float(next(clock)), **line} for line in some] for name, some in lines.items()
    }
    found["generator-1"] = []
    found["fleet"] = [
        {"at": 4.5, "what": "strikes", "kind": "kill", "target": "gateway-0"},
        {"at": 4.6, "what": "struck", "kind": "kill", "target": "gateway-0"},
    ]
    return found


def accounts(folder: Path, found: Journals) -> Accounts:
    for name, lines in found.items():
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{name}.jsonl").write_text(text)
    return Accounts(folder)


def line(found: Journals, what: str) -> dict[str, Any]:
    return next(each for some in found.values() for each in some if each["what"] == what)


def add(of: Journals, journal: str, at: float, what: str, /, **facts: Any) -> None:
    of[journal].append({"at": at, "what": what, **facts})


def test_all_is_well(tmp_path: Path) -> None:
    found = accounts(tmp_path, journals())
    assert found.faults == []
    exposed = {thing.kind for thing in found.things if found.columns_of(thing)}
    assert exposed == {"Turn", "Group"}, "a gateway's death is a danger to those"
    assert {thing.kind for thing in found.things} >= {"Permit", "Job", "Result", "Slot", "Version"}


def test_a_permit_of_a_process_that_stands_still_does_not_count(tmp_path: Path) -> None:
    found = journals()
    add(found, "generator-1", 0.4, "has a permit", fence=98, cost=5)  # before: it is another's now
    add(found, "generator-1", 0.6, "stood still", since=0.3)
    add(found, "generator-1", 20.0, "returns a permit", fence=98)
    add(found, "generator-0", 0.9, "has a permit", fence=99, cost=4)
    assert accounts(tmp_path, found).faults == []


def test_what_a_process_takes_in_the_blow_that_kills_it_ends_with_it(tmp_path: Path) -> None:
    found = journals()
    add(found, "generator-1", 0.1, "began", pid=7)
    add(found, "fleet", 0.3, "strikes", kind="kill", target="generator-1")
    add(found, "generator-1", 0.4, "has a permit", fence=98, cost=5)
    add(found, "generator-1", 0.5, "began", pid=8)
    add(found, "fleet", 0.6, "struck", kind="kill", target="generator-1")
    add(found, "generator-0", 0.9, "has a permit", fence=99, cost=4)
    assert accounts(tmp_path, found).faults == []


def test_a_permit_over_which_the_clock_of_redis_jumps_does_not_count(tmp_path: Path) -> None:
    found = journals()
    add(found, "generator-1", 0.4, "has a permit", fence=98, cost=5)
    add(found, "fleet", 0.5, "strikes", kind="clock forward", target="redis")
    add(found, "fleet", 0.6, "struck", kind="clock forward", target="redis")
    add(found, "generator-0", 0.9, "has a permit", fence=99, cost=4)
    assert accounts(tmp_path, found).faults == []


@pytest.mark.parametrize(("fence", "held"), [(90, 8), (99, 8), (101, 4)])
def test_a_limit_is_that_of_the_fences_between_which_it_changed(
    fence: int, held: int, tmp_path: Path
) -> None:
    found = journals()
    add(found, "observer-0", 0.1, "limit", after=80, by=85, to=[8.0])
    add(found, "observer-0", 30.0, "limit", after=95, by=100, to=[7.0, 4.0])
    add(found, "generator-1", 20.0, "has a permit", fence=fence, cost=held)
    add(found, "generator-1", 21.0, "returns a permit", fence=fence)
    assert accounts(tmp_path, found).faults == []
    found["generator-1"][0]["cost"] += 1
    assert [fault.name for fault in accounts(tmp_path, found).faults] == [str(fence)]


def above_the_limit(found: Journals) -> None:
    for fence in (98, 99):
        add(found, "generator-0", 0.9, "has a permit", fence=fence, cost=3)


def taken_twice(found: Journals) -> None:
    found["trainer-0"].append(line(found, "took") | {"at": 30.0, "receipt": "r2"})
    add(found, "observer-0", 31.0, "batch", receipt="r2", state="consumed", groups={})


def not_in_the_log(found: Journals) -> None:
    add(found, "generator-0", 30.0, "asks", session="t", turn=0)
    add(found, "generator-0", 31.0, "has an answer", session="t", turn=0, id="t-1")
    add(found, "observer-0", 40.0, "session", session="t", calls=[])


BROKEN: dict[str, tuple[Callable[[Journals], Any], str, str]] = {
    "above the limit": (above_the_limit, "Permit", "8 are held, of 6"),
    "no outcome": (lambda j: line(j, "has a result").update(what="x"), "Job", "neither"),
    "another's result": (lambda j: line(j, "has a result").update(value="1"), "Job", "another's"),
    "called wrong": (
        lambda j: line(j, "has a result").update(ok=False, kind="runtime"), "Job", "did not fail",
    ),
    "another run": (lambda j: line(j, "has it again").update(same=False), "Result", "first one"),
    "a result is gone": (
        lambda j: line(j, "has it again").update(what="has none again", error="ResultExpired"),
        "Result", "gone",
    ),
    "too old": (lambda j: line(j, "took").update(ages=[4]), "Slot", "4 versions old"),
    "not consumed": (lambda j: line(j, "batch").update(state="returned"), "Batch", "returned"),
    "lost": (lambda j: line(j, "took").update(groups=[["other", []]]), "Group", "items are lost"),
    "taken twice": (taken_twice, "Group", "2 times"),
    "untrue row": (
        lambda j: line(j, "took").update(groups=[["generator-0-7", [item(wrong=1)]]]),
        "Group", "prove themselves",
    ),
    "turn lost": (
        lambda j: line(j, "took").update(groups=[["generator-0-7", [item(trained={})]]]),
        "Turn", "0 times",
    ),
    "turn trained twice": (
        lambda j: line(j, "took").update(groups=[["generator-0-7", [item(trained={"1": 2})]]]),
        "Turn", "2 times",
    ),
    "not in the log": (not_in_the_log, "Turn", "not in the log"),
    "masked": (
        lambda j: line(j, "took").update(groups=[["generator-0-7", [item(cause="hole")]]]),
        "Turn", "hole",
    ),
    "version goes back": (lambda j: add(j, "observer-0", 40, "version", version=2), "Version", "2"),
    "another sandbox": (
        lambda j: add(j, "generator-0", 3.5, "wrong sandbox", name="box", found=[], lines=1),
        "Session sandbox", "in place of 1",
    ),
    "a key is left": (
        lambda j: add(j, "observer-0", 40, "left", kind="Permit", thing="leases"), "Permit", "left",
    ),
    "a process fails": (
        lambda j: add(j, "observer-0", 40, "failed by itself", name="worker-0", age=9),
        "Process", "itself",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name: str, tmp_path: Path) -> None:
    breaks, kind, said = BROKEN[name]
    found = journals()
    breaks(found)
    faults: list[Thing] = accounts(tmp_path, found).faults
    assert [fault for fault in faults if fault.kind == kind and said in fault.fault], faults
