"""`Sample` of slime and miles as JSON and back, and which versions made its tokens.

Tensors travel as lists with their type. What is no JSON otherwise is refused.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from buffer.default_functions import Item
from buffer.versions.spans import joined, spans_of

_TENSOR = "__tensor__"
_ARRAY = "__array__"  # of numpy


def packed(sample: Any) -> dict[str, Any]:
    """The fields of a sample as JSON has them."""
    return {name: _plain(value) for name, value in sample.to_dict().items()}


def unpacked(sample: type[Any], stored: dict[str, Any]) -> Any:
    """The sample again."""
    return sample.from_dict({name: _rich(value) for name, value in stored.items()})


def item_of(
    name: str, trajectory: Any, version: Callable[[Any], int | None], before: Iterable[Any] = ()
) -> Item:
    """An item of the group `name`: one trajectory, which may be several samples. `before` are the
    spans of what was parked of it, and `version` tells the version of an engine's answer."""
    samples = trajectory if isinstance(trajectory, list) else [trajectory]
    item: Item = {
        "uid": str(samples[0].index), "instance_id": name, "messages": [],
        "sample": [packed(sample) for sample in samples],
    }  # fmt: skip
    reward = samples[-1].reward
    if isinstance(reward, int | float):
        item["reward"] = reward
    said = [v for sample in samples for one in sample.weight_versions or ()
            if (v := version(one)) is not None]  # fmt: skip
    if said:
        item["version_start"], item["version_end"] = min(said), max(said)
    if said and len(samples) == 1:
        known = spans_of({"versions": list(before)})
        new = samples[0].response_length - sum(tokens for tokens, _ in known)
        item["versions"] = joined(known, [(max(0, new), said[-1])])
    return item


def first_of(trajectory: Any) -> Any:
    """Its first sample: a trajectory is one sample, or a list of some."""
    return trajectory[0] if isinstance(trajectory, list) else trajectory


def trajectory_of(sample: type[Any], item: Item) -> Any:
    """What `item_of` was given, with the tokens masked that the policy lets no one train on."""
    samples = [unpacked(sample, stored) for stored in item["sample"]]
    if "train_from" in item:
        first = item["train_from"]
        for one in samples:
            length = one.response_length
            masked = length if first is None else min(first, length)
            mask = one.loss_mask if one.loss_mask is not None else [1] * length
            one.loss_mask = [0] * masked + mask[masked:]
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
