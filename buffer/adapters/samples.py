"""`Sample` of slime and miles as JSON and back, and which versions made its tokens.

Tensors travel as lists with their type. What is no JSON otherwise is refused.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import groupby, zip_longest
from typing import Any

from buffer.default_functions import Item
from buffer.spans import Span, joined, rows_of

Known = tuple[Sequence[Span], int]  # spans of a sample, and how many answers they are
_TENSOR = "__tensor__"
_ARRAY = "__array__"  # of numpy


def packed(sample: Any) -> dict[str, Any]:
    """The fields of a sample as JSON has them."""
    return {name: _plain(value) for name, value in sample.to_dict().items()}


def unpacked(sample: type[Any], stored: dict[str, Any]) -> Any:
    """The sample again."""
    return sample.from_dict({name: _rich(value) for name, value in stored.items()})


def item_of(
    name: str, trajectory: Any, version: Callable[[Any], int | None], before: Sequence[Known] = ()
) -> Item:
    """An item of the group `name`: one trajectory, which may be several samples. `before` is what
    was known of them when they were parked, `version` tells the version of an engine's answer."""
    samples = trajectory if isinstance(trajectory, list) else [trajectory]
    item: Item = {
        "uid": str(samples[0].index), "instance_id": name, "messages": [],
        "sample": [packed(sample) for sample in samples],
    }  # fmt: skip
    reward = samples[-1].reward
    if isinstance(reward, int | float):
        item["reward"] = reward
    answers = [[version(one) for one in sample.weight_versions or ()] for sample in samples]
    said = [one for row in answers for one in row if one is not None]
    if said:
        item["version_start"], item["version_end"] = min(said), max(said)
        known = [*before, *[((), 0)] * len(samples)]
        rows = [_spans(*each) for each in zip(samples, answers, known, strict=False)]
        item["versions"] = rows if len(rows) > 1 else rows[0]
    return item


def known_of(part: Item) -> list[Known]:
    """The spans of each sample that was parked, and how many answers these are."""
    return [
        (row, len(sample.get("weight_versions") or ()))
        for row, sample in zip_longest(rows_of(part), part["sample"], fillvalue=())
        if sample
    ]


def _spans(sample: Any, answers: list[int | None], known: Known) -> list[list[int]]:
    """The spans say which version made which tokens. If the answers of several versions cannot be
    distinguished, all their tokens count as the oldest one's: none of them is trained on for too
    long."""
    before, counted = known
    place = sum(tokens for tokens, _ in before)
    tokens = max(0, sample.response_length - place)
    new = [one for one in answers[counted:] if one is not None]
    whole = new or [one for one in answers if one is not None]
    if not whole:
        return joined(before)
    if len(set(new)) > 1:
        runs = [
            (made, len(list(run))) for made, run in groupby((sample.loss_mask or ())[place:], bool)
        ]
        if sum(made for made, _ in runs) == len(new) and sum(n for _, n in runs) == tokens:
            versions = iter(new)
            return joined(before, [(n, next(versions) if made else -1) for made, n in runs])
    return joined(before, [(tokens, min(whole))])


def first_of(trajectory: Any) -> Any:
    """The first sample: a trajectory is one sample, or a list of some."""
    return trajectory[0] if isinstance(trajectory, list) else trajectory


def trajectory_of(sample: type[Any], item: Item) -> Any:
    """The sample that `item_of` was given, without the tokens that the policy lets no one train
    on."""
    samples = [unpacked(sample, stored) for stored in item["sample"]]
    if "train_from" in item:
        by_row = isinstance(item["train_from"], list)
        firsts = item["train_from"] if by_row else [item["train_from"]] * len(samples)
        stale = item.get("masked", [])
        for one, first, ranges in zip(
            samples, firsts, stale if by_row else [stale] * len(samples), strict=True
        ):
            mask = list(one.loss_mask if one.loss_mask is not None else [1] * one.response_length)
            for start, end in ranges if first is not None else [(0, len(mask))]:
                mask[start:end] = [0] * len(mask[start:end])
            one.loss_mask = mask
    return samples[0] if len(samples) == 1 else samples


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        kind = _ARRAY if type(value).__module__.startswith("numpy") else _TENSOR
        return {kind: str(value.dtype).rpartition(".")[2], "values": value.tolist()}
    return value


def _rich(value: Any) -> Any:
    if isinstance(value, dict) and _TENSOR in value:
        torch = import_module("torch")
        return torch.tensor(value["values"], dtype=getattr(torch, value[_TENSOR]))
    if isinstance(value, dict) and _ARRAY in value:
        return import_module("numpy").array(value["values"], dtype=value[_ARRAY])
    return value
