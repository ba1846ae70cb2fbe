"""What is dear takes turns: each test in one of them, and no turn much dearer than another."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.harness import budget, selection

FILE = selection.ROOT / "tests" / "test_a.py"
COSTS = {f"tests/test_a.py::dear_{n}": budget.Cost(1 + n / 10, 2) for n in range(40)}
ALL = [f"{name}[{case}]" for name in COSTS for case in "ab"] + ["tests/test_a.py::cheap"]


class Item(SimpleNamespace):
    __hash__ = object.__hash__


@pytest.fixture(autouse=True)
def costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_kept", lambda: COSTS)
    monkeypatch.setattr(selection, "_changed", frozenset)


def chosen(monkeypatch: pytest.MonkeyPatch, turn: int) -> list[str]:
    monkeypatch.setattr(selection, "turn", lambda: turn)
    items = [Item(nodeid=name, path=FILE, name=name) for name in ALL]
    others = selection._of_other_turns(items)
    return [item.nodeid for item in items if item not in others]


def test_each_dear_test_has_one_turn_and_the_cheap_ones_have_all(monkeypatch) -> None:
    turns = [chosen(monkeypatch, turn) for turn in range(selection.TURNS)]
    assert all("tests/test_a.py::cheap" in names for names in turns)
    dear = [name for names in turns for name in names if "dear" in name]
    assert sorted(dear) == sorted(ALL[:-1])
    spent = [sum(COSTS[n.partition("[")[0]].case for n in names if "dear" in n) for names in turns]
    assert max(spent) < 1.1 * min(spent)


def test_a_file_that_was_changed_waits_for_no_turn(monkeypatch) -> None:
    monkeypatch.setattr(selection, "_changed", lambda: frozenset({"tests/test_a.py"}))
    assert chosen(monkeypatch, 3) == ALL


def test_the_first_pages_are_read_at_each_turn_and_each_other_page_at_one(monkeypatch) -> None:
    monkeypatch.setattr(selection, "turn", lambda: 2)
    pages = ["README.md", *(f"docs/guide/page-{n}.md" for n in range(selection.TURNS))]
    items = [
        Item(
            nodeid=f"tests/docs/test_blocks.py::blocks[{page}]",
            path=Path("tests/docs/test_blocks.py"),
            callspec=SimpleNamespace(params={"document": selection.ROOT / page}),
        )
        for page in pages
    ]
    others = selection._of_other_turns(items)
    left = [page for page, item in zip(pages, items, strict=True) if item not in others]
    assert left[0] == "README.md"
    assert len(left) == 1 + 1


def test_of_what_runs_on_both_each_test_is_on_the_fake_in_one_turn_of_four(monkeypatch) -> None:
    file = min(selection.ON_BOTH)
    found = []
    for turn in range(4):
        monkeypatch.setattr(selection, "turn", lambda turn=turn: turn)
        for kind in ("fake", "real"):
            for n in range(9):
                spec = SimpleNamespace(params={"redis": kind})
                item = Item(nodeid=f"{file}::a[{kind}-{n}]", path=FILE, name="a", callspec=spec)
                found += [item.nodeid] if not selection._waits(item, set()) else []
    assert sorted(name for name in found if "fake" in name) == [
        f"{file}::a[fake-{n}]" for n in range(9)
    ]
    assert len([name for name in found if "real" in name]) == 9 * 4


STORIES = [[], [], {}, "a", None]


def of_other_values(monkeypatch: pytest.MonkeyPatch, turn: int, named: str = "kind") -> list[str]:
    monkeypatch.setattr(selection, "turn", lambda: turn)
    items = [
        Item(
            nodeid=f"tests/test_a.py::cheap[{story}-{kind}]",
            path=FILE,
            name="cheap",
            callspec=SimpleNamespace(params={"story": STORIES[story], "kind": kind}),
            iter_markers=lambda _: [pytest.mark.in_turns(named).mark],
        )
        for story in range(5)
        for kind in range(4)
    ]
    others = selection._of_other_values(items)
    return [item.nodeid for item in items if item not in others]


def test_each_story_has_a_turn_with_one_kind_and_after_some_turns_with_all(monkeypatch) -> None:
    turns = [of_other_values(monkeypatch, turn) for turn in range(4)]
    assert all(
        sorted(name.partition("-")[0] for name in names)
        == [f"tests/test_a.py::cheap[{story}" for story in range(5)]
        for names in turns
    )
    assert len({name for names in turns for name in names}) == 5 * 4
    assert len(of_other_values(monkeypatch, 0, "another")) == 5 * 4


def test_what_is_dear_or_was_changed_has_no_turns_by_value_besides(monkeypatch) -> None:
    monkeypatch.setattr(selection, "_changed", lambda: frozenset({"tests/test_a.py"}))
    assert len(of_other_values(monkeypatch, 0)) == 5 * 4
    monkeypatch.setattr(selection, "_changed", frozenset)
    monkeypatch.setattr(
        selection, "_kept", lambda: {"tests/test_a.py::cheap": budget.Cost(1.0, 20)}
    )
    assert len(of_other_values(monkeypatch, 0)) == 5 * 4
