"""Raw groups: their items as they were written, before a read checks, fills or scales them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from buffer.default_functions import Item
from buffer.item import by_arrival, stored_item
from buffer.task import Task
from ground.lua import chunks

_ITEMS = 512  # in one pipeline


class RawGroups:
    """The raw groups of a task, each by its id `<instance id>:<round>`."""

    def __init__(self, task: Task) -> None:
        self._task = task

    async def items(self, gids: Sequence[bytes]) -> list[list[Item]]:
        """Each group's items in the order in which they came."""
        values = await self._task.link.commands(
            [("HVALS", self._task.group_key(gid.decode())) for gid in gids]
        )
        return await asyncio.to_thread(lambda: [by_arrival(group) for group in values])

    async def instance_ids(self, gids: Sequence[bytes]) -> list[Any]:
        """The ids as they were written: 7 is not "7"."""
        metas = await self._task.link.commands(
            [("HGET", self._task.meta_key(gid.decode()), "id") for gid in gids]
        )
        return [
            json.loads(said) if said else gid.decode().rpartition(":")[0]
            for gid, said in zip(gids, metas, strict=True)
        ]

    async def starts(self, gids: Sequence[bytes]) -> list[int | None]:
        """The version at each group's start, where the task has a policy."""
        metas = await self._task.link.commands(
            [("HGET", self._task.meta_key(gid.decode()), "start") for gid in gids]
        )
        return [int(said) if said else None for said in metas]

    async def since_last_read(self) -> tuple[dict[Any, list[Item]], int]:
        """All items written since the last read, by instance, for a task's own `meta_info`.

        The list `raw` in Redis has an entry for each, in pairs of group and uid. The second value
        is how many entries it has had so far, with those that were cut off: the read that uses
        these items cuts off what is left of so many.
        """
        key = self._task.key
        cut, flat = await self._task.link.commands(
            [("HGET", key("seen"), "cut"), ("LRANGE", key("raw"), 0, -1)]
        )
        found: dict[Any, list[Item]] = {}
        for part in chunks(list(zip(flat[::2], flat[1::2], strict=True)), _ITEMS):
            values = await self._task.link.commands(
                [("HGET", self._task.group_key(gid.decode()), uid) for gid, uid in part]
            )
            for value in values:
                if value is not None:
                    _, item = stored_item(value)
                    found.setdefault(item["instance_id"], []).append(item)
        return found, int(cut or 0) + len(flat)
