"""Gates as one who only looks sees them: many in a few round trips, and none is made by that."""

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from ground.lua import chunks, load_script
from ground.redis.connection import is_passing
from ground.redis.url import RedisTarget
from limiter.commands import GateCommands
from limiter.errors import GateError, GateUnavailable, refused
from limiter.status import GateStatus, read_status
from limiter.terms import Terms

_STATUS = load_script("limiter", "status", "full", "existing")
_NOBODY = (*Terms().args(), "")  # makes no gate, and no grant is for it
_AT_ONCE = 100


async def statuses(
    client: Any, target: RedisTarget, names: Sequence[str]
) -> dict[str, GateStatus | GateError]:
    """Each gate that is there; in the place of one that cannot be read, the reason."""
    found: dict[str, GateStatus | GateError] = {}
    for some in chunks(list(names), _AT_ONCE):
        for name, reply in zip(some, await _replies(client, some), strict=True):
            if is_passing(reply):
                raise GateUnavailable(name, str(target), reply)
            if isinstance(reply, ResponseError):
                found[name] = refused(name, f"{target} answered: {reply}")
            elif reply:
                try:
                    found[name] = read_status(name, reply)
                except GateError as spoiled:
                    found[name] = spoiled
    return found


async def _replies(client: Any, names: Sequence[str]) -> list[Any]:
    keys = {name: GateCommands(name, Terms(), "").keys for name in names}
    pipe = client.pipeline(transaction=False)
    for name in names:
        pipe.execute_command(*_STATUS.command(keys[name], _NOBODY))
    replies: list[Any] = await pipe.execute(raise_on_error=False)
    for at, reply in enumerate(replies):
        if isinstance(reply, NoScriptError):
            replies[at] = await _alone(client, keys[names[at]])
    return replies


async def _alone(client: Any, keys: Sequence[str]) -> Any:
    try:
        return await _STATUS.call_async(client, keys, _NOBODY)
    except ResponseError as refusal:
        return refusal
