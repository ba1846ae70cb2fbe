"""Groups of a run's tasks, a page at a time: by state, version and mean reward."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from buffer import RolloutBuffer
from buffer.catalog import STATES
from penstock.fleet.buffers import shown
from penstock.fleet.model import Group

GROUP_STATES = (*STATES, "quarantined")
WHY = ("count", "timeout", "judged")
MOST_LOOKED_AT = 2000  # groups, for one page of those that fit a filter
_AT_ONCE = 250


@dataclass(frozen=True)
class GroupFilter:
    """The condition on the groups of a page. `find` is in the id of its instance."""

    version: int | None = None
    least: float | None = None
    most: float | None = None
    why: str = ""
    find: str = ""

    def fits(self, group: Group) -> bool:
        if self.version is not None and group.version != self.version:
            return False
        if self.why and group.why != self.why:
            return False
        if self.find.lower() not in str(group.instance_id).lower():
            return False
        if self.least is None and self.most is None:
            return True
        reward = group.reward
        return reward is not None and (
            (self.least is None or reward >= self.least)
            and (self.most is None or reward <= self.most)
        )

    @property
    def is_any(self) -> bool:
        return self == GroupFilter()


@dataclass(frozen=True)
class GroupPage:
    """Some groups, task by task, the oldest first.

    total   groups in this state, whatever their version and reward
    looked  how many of them were looked at for this page
    next    where the next page begins; None at the end
    """

    groups: tuple[Group, ...]
    total: int
    looked: int
    next: int | None


def meant_by(name: str) -> list[tuple[str, int]]:
    """The groups that a person may mean: the first round of an instance of that name, or
    `<instance>:<round>`. An instance's own name may end like that, too."""
    instance, _, number = name.rpartition(":")
    is_round = instance and number.isdecimal() and len(number) < 10
    return [(name, 0), *([(instance, int(number))] if is_round else [])]


async def groups_of(
    buffers: Sequence[RolloutBuffer],
    state: str,
    fitting: GroupFilter,
    *,
    start: int = 0,
    count: int = 50,
) -> GroupPage:
    """Read a page of groups. Of those that fit a filter it may be short, and `next` still not
    None."""
    if state not in GROUP_STATES:
        raise ValueError(f"`state` must be one of {', '.join(GROUP_STATES)}")
    sizes = [await buffer.catalog.size(state) for buffer in buffers]
    total, ends = sum(sizes), list(accumulate(sizes))
    found: list[Group] = []
    at = start
    while at < total and len(found) < count and at - start < MOST_LOOKED_AT:
        index = next(n for n, end in enumerate(ends) if at < end)
        wanted = count - len(found) if fitting.is_any else _AT_ONCE
        begin = at - (ends[index] - sizes[index])
        infos = await buffers[index].catalog.page(state, begin, min(wanted, ends[index] - at))
        if not infos:
            at = ends[index]
        for info in infos:
            if len(found) == count:
                break
            at += 1
            group = shown(buffers[index].task, info, state)
            if fitting.fits(group):
                found.append(group)
    return GroupPage(tuple(found), total, at - start, at if at < total else None)
