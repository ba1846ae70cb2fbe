"""Under /v1: a task's policy on versions, what its trainer publishes, and slots for generators."""

import re
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from buffer.errors import NoPolicy, SlotLost, why_not_admitted
from buffer.http.answers import WHOLE, Answer, Refused, body_of, unless_gone
from buffer.http.bodies import FENCE, Parked, takes
from buffer.http.desk import Serving
from buffer.http.v1 import Existing, check_many
from buffer.item import LONGEST_ID, parse_json
from buffer.versions.policy import Policy
from buffer.versions.slots import Slot

_MOST_SLOTS = 1000
_PARK_BYTES = 256 * 1024 * 1024
_ASK = r"^[0-9a-f]{32}$"
_SLOT = r"^[0-9a-f]{32}\.[0-9]{1,18}$"
_OWNER = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"

SlotId = Annotated[str, Path(pattern=_SLOT)]
Fence = Annotated[str, Query(pattern=FENCE)]
Version = Annotated[int, Field(ge=0, le=2**31), WHOLE]
Seconds = Annotated[float, Query(ge=0)]
Instance = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | Annotated[int, WHOLE]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Publish(_Asked):
    """A version that a trainer publishes."""

    version: Version
    saved: Version | None = Field(
        None, description="Version of the oldest checkpoint that you may go back to."
    )
    owner: str = Field(pattern=_OWNER, description="The trainer: a name of its own per start.")
    lead: bool = Field(False, description="Take over from another trainer.")
    fresh: bool = Field(
        False, description="Begin a new run: drop all groups and slots, and take over."
    )


class Wanted(_Asked):
    """The group that a new slot is to make."""

    instance_id: Instance
    round: Annotated[int, Field(ge=0, lt=2**53), WHOLE] | None = None


class Ask(_Asked):
    """A generator's request for slots."""

    n: Annotated[int, Field(ge=1, le=_MOST_SLOTS), WHOLE] = 1
    owner: str = Field(pattern=_OWNER)
    wait: float = Field(0.0, ge=0, description="Seconds to wait for the first slot.")
    ask: str | None = Field(
        None,
        pattern=_ASK,
        description="32 hexadecimal digits of your own: an ask that is repeated with them gets the "
        "same slots, and keeps its place in the line.",
    )
    instances: list[Wanted] = Field([], max_length=_MOST_SLOTS)


class Held(_Asked):
    """A slot in its holder's hands."""

    id: str = Field(pattern=_SLOT)
    fence: str = Field(pattern=FENCE)


class Renew(_Asked):
    """The slots of one process."""

    slots: list[Held] = Field(max_length=_MOST_SLOTS)


version_routes = APIRouter(prefix="/v1/tasks/{task}", tags=["versions"])


@version_routes.put("/policy")
async def set_policy(buffer: Existing, policy: Policy) -> dict[str, Any]:
    """Bound how stale samples are; it may be changed at any time."""
    await buffer.set_policy(policy)
    return policy.model_dump()


@version_routes.get("/policy")
async def policy_of(buffer: Existing) -> dict[str, Any]:
    """The policy in force."""
    policy = await buffer.policy()
    if policy is None:
        raise NoPolicy(buffer.task)
    return policy.model_dump()


@version_routes.post("/versions")
async def publish(buffer: Existing, asked: Publish) -> dict[str, int]:
    """Publish a version, once the engines have it. A lower one begins a new line.

    What the checkpoint does not hold is then ready again.
    """
    if asked.saved is not None and asked.saved > asked.version:
        raise Refused(400, f"saved {asked.saved} is above version {asked.version}")
    return asdict(
        await buffer.publish(
            asked.version,
            saved=asked.saved,
            lead=asked.lead,
            owner=asked.owner,
            fresh=asked.fresh,
        )
    )


@version_routes.get("/versions")
async def versions(
    desk: Serving, buffer: Existing, after: int | None = None, wait: Seconds = 0.0
) -> Response:
    """The version, what is under way by age, and what a take waits for.

    With `after` it waits for another version first.
    """
    if after is not None:
        await buffer.published(after, min(wait, desk.settings.longest_wait))
    now = await buffer.versions()
    return Answer({**asdict(now), "dropped_share": now.dropped_share})


@version_routes.post("/slots")
async def admit(desk: Serving, buffer: Existing, asked: Ask, request: Request) -> Response:
    """Get slots, one per group; none if the policy has no room within `wait` seconds: see `why`.

    Renew them within `lease` seconds. An ask ends when its client goes away.
    """
    wishes = [
        one.instance_id if one.round is None else (one.instance_id, one.round)
        for one in asked.instances
    ]
    wait = min(asked.wait, desk.settings.longest_wait)

    async def give_back(slots: list[Slot]) -> None:
        for slot in slots if asked.ask is None else ():  # a named ask may be repeated already
            await slot.end(back=True)

    asking = buffer.admit(asked.n, instances=wishes, wait=wait, owner=asked.owner, ask=asked.ask)
    found = await unless_gone(request, asking, give_back)
    policy = await buffer.policy()
    answer: dict[str, Any] = {
        "slots": [_shown(slot) for slot in found],
        "lease": policy.slot_lease if policy else 0.0,
    }
    if not found:
        answer["why"] = why_not_admitted(buffer.newest)
    return Answer(answer)


@version_routes.post("/slots/renew")
async def renew(buffer: Existing, asked: Renew) -> dict[str, Any]:
    """Renew slots. `lost` ones are over; `late` ones are in time only under this version.

    Renew again within `lease` seconds: the setting may have changed.
    """
    version, states = await buffer.slots.renew([(slot.id, slot.fence) for slot in asked.slots])
    said = list(zip(asked.slots, states, strict=True))
    policy = await buffer.policy()
    return {
        "version": version,
        "lease": policy.slot_lease if policy else 0.0,
        "late": [slot.id for slot, state in said if state == 1],
        "lost": [slot.id for slot, state in said if state == 2],
    }


@version_routes.delete("/slots/renew", include_in_schema=False)
async def no_slot() -> None:
    """Refuse `renew` where a slot's id belongs."""
    raise HTTPException(405)


@version_routes.post("/slots/{slot}/park", openapi_extra=takes(Parked))
async def park(buffer: Existing, slot: SlotId, request: Request) -> dict[str, int]:
    """Park unfinished items, `{"fence": "7", "items": […], "go_on": false}`.

    The next slot of the group gets them. 410 when the slot is over.
    """
    given, _ = parse_json(await body_of(request, _PARK_BYTES))
    asked: Any = given if isinstance(given, dict) else {}
    items, fence, go_on = asked.get("items"), asked.get("fence"), asked.get("go_on", False)
    fits = isinstance(fence, str) and isinstance(items, list) and isinstance(go_on, bool)
    if not fits or not re.fullmatch(FENCE, fence):
        raise Refused(400, 'the body must be {"fence": "7", "items": […], "go_on": false}')
    check_many(items)
    await buffer.slots.park(slot, fence, items, None, go_on=go_on)
    return {"parked": len(items)}


@version_routes.delete("/slots/{slot}")
async def end(buffer: Existing, slot: SlotId, fence: Fence, back: bool = False) -> dict[str, bool]:
    """End a slot. With `back`, another generator generates the missing items."""
    if not await buffer.slots.end([(slot, fence)], back=back):
        raise SlotLost(slot)
    return {"ended": True}


def _shown(slot: Slot) -> dict[str, Any]:
    names = ("id", "fence", "instance_id", "round", "start", "newest", "late", "attempt",
             "missing", "partial")  # fmt: skip
    return {name: getattr(slot, name) for name in names}
