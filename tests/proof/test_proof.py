"""A short proof, and a long one."""

import random
import re
from pathlib import Path

import pytest

from tests.proof import page
from tests.proof.__main__ import COUNTS, older, prove
from tests.proof.account import Accounts
from tests.proof.schedule import KINDS, drawn

FEW = {"engine": 1, "gateway": 1, "buffer": 1, "worker": 2, "trainer": 2, "generator": 1}
SEED = 3601  # it hits Redis in five ways, its clock too, and kills each kind of process but workers


def holds(found: Accounts) -> None:
    print(page.summary(found))
    assert [page.said(fault, found) for fault in found.faults] == []
    kinds = {thing.kind for thing in found.things}
    assert kinds == {*page.promises(), *page.MORE}
    chances, _ = page.counted(found)
    assert all(chances["Group", column] for column in ("Process killed", "Redis restarted"))


@pytest.mark.timeout(600)
def test_no_promise_is_broken_in_six_seconds(tmp_path: Path) -> None:
    found = prove(tmp_path / "run", SEED, 6, 0.55, FEW)
    holds(found)
    written = page.written(found, SEED)
    assert "Broken promises: 0" in written
    assert not re.search(r"(?:src|href|url)\b|https?:", written), "it asks for something"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_no_promise_is_broken_in_ten_minutes(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"SEED={seed}")
    holds(prove(tmp_path / "run", seed, 600, 3, COUNTS, older()))


def test_equal_seeds_draw_equal_disturbances_of_every_kind() -> None:
    names = [f"{role}-{n}" for role, count in COUNTS.items() for n in range(count)]
    first = list(drawn(7, 600, 3, names))
    assert first == list(drawn(7, 600, 3, names))
    assert first != list(drawn(8, 600, 3, names))
    assert {each.kind for each in first} == KINDS.keys()
    assert {each.target for each in first} == {"redis", *names} - {"engine-0"}
