"""An item of the buffer has its reward for these reasons: its writer's notes, its group, turns and
versions."""

from collections.abc import Iterator, Mapping
from typing import Any

from buffer import RolloutBuffer
from buffer.catalog import GroupInfo
from buffer.errors import ItemRefused
from buffer.spans import reported
from penstock.fleet import FleetReader
from penstock.why.job import KEPT, explain_job
from penstock.why.model import Explained, Fact, Look, cut, many

_FATES: dict[str, tuple[str, Look]] = {
    "open": ("it still fills", ""),
    "ready": ("it waits for a trainer", ""),
    "leased": ("it is in a batch that a trainer has", ""),
    "consumed": ("it was trained on", "well"),
    "quarantined": ("it is in quarantine: a function failed on it", "warn"),
    "invalid": ("it was discarded as invalid", "warn"),
    "expired": ("it was discarded: it timed out with too few items", "warn"),
    "stale": ("it was discarded: it was too old for the weights", "warn"),
}  # fmt: skip
# Where writers put what they know of an item beside its reward.
_NESTED = ("extra_info", "metadata")
# How trainers' adapters say that a sample is masked, each with where its reason stands.
_MASKS = (
    ("cause", "cause"), ("traj_masked", "traj_exit_reason"), ("penstock_masked", "penstock_masked"),
)  # fmt: skip
_SHOWN_ITEMS = 64


async def explain_item(
    reader: FleetReader, buffer: RolloutBuffer, instance: str, number: int, uid: str
) -> Explained | None:
    """Explain an item of a group; None if the group has none of that uid."""
    items = await buffer.catalog.items(instance, number)
    item = next((one for one in items if str(one.get("uid")) == uid), None)
    group = await buffer.catalog.group(instance, number)
    if item is None or group is None:
        return None
    reward, masked = item.get("reward"), _mask_of(item)
    facts = [Fact("reward", "none" if reward is None else f"{reward}", "warn" if masked else "")]
    if masked:
        facts.append(Fact("masked", f"{masked}: its writer says so", "warn"))
    facts += _of_group(buffer.task, group, items)
    facts += _made(item)
    jobs = _named(item, "job") or _named(item, "penstock_job")
    sentence = _sentence(reward, masked)
    look: Look = "warn" if masked or not reward else "well"
    judged: list[str] = []
    for id in jobs:
        found = await explain_job(reader, id)
        if found is None:
            facts.append(Fact("job", f"{id}, which Redis has forgotten; {KEPT}", "warn"))
            continue
        _, job = found
        facts += [Fact("job", f"{id}: {job.sentence}", job.look, "job", id), *job.facts]
        judged += job.jobs
        if not masked:
            sentence, look = f"{sentence}; by its job, {job.sentence}", job.look
    if not jobs:
        facts.append(Fact("job", "its writer noted none: write `Grade.job` into the item as `job`"))
    return Explained("item", uid, buffer.task, sentence, look, tuple(facts), tuple(judged))


async def explain_group(
    reader: FleetReader, buffer: RolloutBuffer, instance: str, number: int
) -> Explained | None:
    """A group, and the reward of each of its items; None if nothing is known of it."""
    group = await buffer.catalog.group(instance, number)
    if group is None:
        return None
    items = await buffer.catalog.items(instance, number)
    fate, look = _FATES.get(group.state, (f"it is {group.state}", ""))
    mean = "no reward is known" if group.reward is None else f"its mean reward is {group.reward:g}"
    facts = [*_of_group(buffer.task, group, items)]
    for item in items[:_SHOWN_ITEMS]:
        uid, masked = str(item.get("uid", "")), _mask_of(item)
        reward = "none" if item.get("reward") is None else f"{item['reward']}"
        said = f"{uid}: reward {reward}" + (f", masked: {masked}" if masked else "")
        facts.append(Fact("item", said, "warn" if masked else "", "item", uid))
    if group.items and not items:
        gone = "they are gone: `retain` of its task says how long they are kept after training"
        facts.append(Fact("items", gone))
    return Explained("group", f"{instance}:{number}", buffer.task, f"{mean}, and {fate}", look,
                     tuple(facts))  # fmt: skip


def _sentence(reward: Any, masked: str) -> str:
    if masked:
        return f"it is masked, so its reward does not count: {masked}"
    if reward is None:
        return "it has no reward"
    said = f"{reward:g}" if isinstance(reward, int | float) else cut(str(reward))
    return f"its reward is {said}"


def _of_group(task: str, group: GroupInfo, items: list[dict[str, Any]]) -> Iterator[Fact]:
    fate, look = _FATES.get(group.state, (f"it is {group.state}", ""))
    name = f"{group.instance_id}:{group.round}"
    why = f", {cut(group.reason)}" if group.reason else ""
    yield Fact("group", f"{name} of task {task}, {many(group.items, 'item')}: {fate}{why}", look,
               "group", name, task)  # fmt: skip
    rewards = [item.get("reward") for item in items]
    if rewards:
        listed = ", ".join("none" if one is None else f"{one}" for one in rewards[:_SHOWN_ITEMS])
        same = len(rewards) > 1 and len({str(one) for one in rewards}) == 1
        alike = "; all alike: what compares within groups learns nothing" if same else ""
        yield Fact("its rewards", listed + alike)
    if group.version is not None:
        begun = f"the group began under version {group.version}"
        orphan = ", in a line of versions that is over" if group.orphan else ""
        yield Fact("version", begun + orphan, "warn" if orphan else "")


def _made(item: Mapping[str, Any]) -> Iterator[Fact]:
    """The turns, and the versions of the weights, by which an item was made."""
    if isinstance(rows := item.get("rows"), list):
        known = [row if isinstance(row, Mapping) else {} for row in rows]
        calls = {str(call[0]) for row in known for call in _lists(row.get("calls"))}
        yield Fact("turns", f"{many(len(calls), 'turn')} in {many(len(rows), 'row')}")
        for number, row in enumerate(known, 1):
            if row.get("cause"):
                yield Fact(f"row {number}", f"masked: {cut(str(row['cause']))}", "warn")
    elif isinstance(messages := item.get("messages"), list) and messages:
        said = sum(one.get("role") == "assistant" for one in messages if isinstance(one, Mapping))
        yield Fact("turns", f"{many(said, 'answer')} in {many(len(messages), 'message')}")
    try:
        lowest, highest = reported(dict(item))
    except ItemRefused:
        lowest = highest = ""
    if lowest:
        yield Fact("versions", f"its tokens are of version {lowest}"
                   + (f" to {highest}" if highest != lowest else ""))  # fmt: skip
    for failure in _named(item, "failure"):
        yield Fact("failure", cut(failure), "warn")
    for session in _named(item, "session"):
        yield Fact("session", session, "", "session", session)


def _lists(found: Any) -> list[list[Any]]:
    """The lists in a list, that are not empty: the buffer takes rows of any form."""
    rows = found if isinstance(found, list) else []
    return [row for row in rows if isinstance(row, list) and row]


def _mask_of(item: Mapping[str, Any]) -> str:
    """The reason of its mask, in its writer's words; empty if it has none."""
    for place in _notes(item):
        for flag, reason in _MASKS:
            if place.get(flag):
                return cut(str(place.get(reason) or flag))
    return ""


def _named(item: Mapping[str, Any], what: str) -> list[str]:
    """The names that the writer noted under `what`: one, or a list; in the item, or where notes are
    kept."""
    for place in _notes(item):
        found = place.get(what)
        if isinstance(found, str) and found:
            return [found]
        if isinstance(found, list):
            return [one for one in found if isinstance(one, str)]
    return []


def _notes(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    places = (item, *(item.get(name) for name in _NESTED))
    return [place for place in places if isinstance(place, Mapping)]
