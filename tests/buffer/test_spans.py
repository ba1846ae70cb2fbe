"""Which tokens are too old to train on: by stretch, and by row of an item."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from buffer import ItemRefused
from buffer.adapters.samples import item_of, known_of, trajectory_of
from buffer.spans import mask, reported


@dataclass
class Sample:
    """slime's, as far as spans need it."""

    response_length: int
    weight_versions: list[str]
    loss_mask: list[int] | None = None
    index: int = 0
    reward: float = 1.0
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Sample":
        return cls(**stored)


def masks(item: dict[str, Any], oldest: int) -> list[list[int]]:
    """The loss masks of its samples, as they are delivered under `mask`."""
    mask([item], oldest)
    found = trajectory_of(Sample, item)
    return [one.loss_mask for one in (found if isinstance(found, list) else [found])]


@pytest.mark.parametrize(
    ("versions", "masked", "first"),
    [
        ([[10, 8], [10, 7], [5, 9]], [[10, 20]], 20),
        ([[10, 7], [5, 8]], [[0, 10]], 10),
        ([[3, -1], [5, 8]], [], 3),
        ([[5, 8], [5, 7]], [[5, 10]], None),
        ([[5, 6], [0, 9], [5, 7]], [[0, 10]], None),
    ],
)
def test_each_stale_stretch_is_masked(versions: Any, masked: Any, first: Any) -> None:
    item = {"versions": versions}
    assert mask([item], 8) == sum(end - start for start, end in masked)
    assert (item["masked"], item["train_from"]) == (masked, first)


def test_early_in_a_run_a_prompt_and_an_unknown_version_are_not_trained_on() -> None:
    first: Any = {"versions": [[10, -1], [5, 0]]}
    unknown: Any = {"versions": [[10, -1], [5, -2]]}
    assert mask([first, unknown], -3) == 5
    assert (first["train_from"], first["masked"]) == (10, [])
    assert (unknown["train_from"], unknown["masked"]) == (None, [[10, 15]])


def test_rows_are_masked_each_by_its_own_versions() -> None:
    item = {"versions": [[[4, 7], [4, 8]], [[6, 8]], []], "version_start": 7}
    assert reported(item) == ("7", "8")
    assert mask([item], 8) == 4
    assert item["masked"] == [[[0, 4]], [], []]
    assert item["train_from"] == [4, 0, None], "of the last row only the item's start is known"


def test_an_item_without_spans_is_trained_on_or_not_as_a_whole() -> None:
    old, young = {"version_start": 7}, {"version_start": 8}
    assert mask([old, young], 8) == 0
    assert (old["train_from"], young["train_from"]) == (None, 0)
    assert "masked" not in old


@pytest.mark.parametrize("versions", [[[1]], [[[1]]], [[1, 2], [[1, 2]]], "7", [[[1, "x"]]]])
def test_versions_that_are_no_spans_are_refused(versions: Any) -> None:
    with pytest.raises(ItemRefused):
        reported({"versions": versions})


def test_answers_of_two_versions_keep_both() -> None:
    sample = Sample(8, ["7", "8"], [1, 1, 1, 0, 0, 1, 1, 1])
    item = item_of("a", sample, int)
    assert item["versions"] == [[3, 7], [2, -1], [3, 8]]
    assert (item["version_start"], item["version_end"]) == (7, 8)
    assert masks(item, 8) == [[0, 0, 0, 0, 0, 1, 1, 1]]


def test_answers_that_cannot_be_told_apart_count_as_the_oldest() -> None:
    item = item_of("a", Sample(8, ["7", "8"]), int)
    assert item["versions"] == [[8, 7]]
    assert (item["version_start"], item["version_end"]) == (7, 8)
    assert masks(item, 8) == [[0] * 8]
    assert masks(item_of("a", Sample(8, ["7", "8"]), int), 7) == [[1] * 8]


def test_a_stale_stretch_in_the_middle_is_not_trained_on() -> None:
    sample = Sample(7, ["8", "7", "9"], [1, 1, 0, 1, 0, 1, 1])
    assert masks(item_of("a", sample, int), 8) == [[1, 1, 0, 0, 0, 1, 1]]


def test_a_fresh_sample_beside_a_stale_one_is_trained_on() -> None:
    both = [Sample(4, ["7", "8"], [1, 0, 1, 1]), Sample(3, ["8"])]
    item = item_of("a", both, int)
    assert item["versions"] == [[[1, 7], [1, -1], [2, 8]], [[3, 8]]]
    assert masks(item, 8) == [[0, 0, 1, 1], [1, 1, 1]]


def test_what_is_continued_keeps_the_spans_that_were_parked() -> None:
    parked = item_of("a", Sample(4, ["7"]), int)
    whole = item_of("a", Sample(9, ["7", "8"]), int, known_of(parked))
    assert whole["versions"] == [[4, 7], [5, 8]]
    again = item_of("a", Sample(12, ["7", "8", "9"]), int, known_of(whole))
    assert again["versions"] == [[4, 7], [5, 8], [3, 9]]


def test_an_answer_without_a_version_counts_as_the_oldest_known() -> None:
    def known(weights: str) -> int | None:
        return int(weights) if weights.isdecimal() else None

    parked = item_of("a", Sample(4, ["7"]), known)
    whole = item_of("a", Sample(6, ["7", "default"]), known, known_of(parked))
    assert whole["versions"] == [[6, 7]]
    assert "versions" not in item_of("a", Sample(6, ["default"]), known)
