"""A task's policy on versions: how old a group may be when a trainer takes it.

Invariant: a group that is taken under version v began under v - max_age or later.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from buffer.settings import LONGEST, MOST, TaskConfig, first_problem
from ground import SettingError
from ground.lua import text_fields

_Versions = Annotated[int, Field(ge=0, le=1_000_000)]


class Policy(BaseModel):
    """How stale samples may be, in versions of the policy that is trained.

        policy = Policy(groups_per_version=32, max_age=4)

    groups_per_version  groups that are trained on under one version
    max_age             most versions between a group's start and the version it is taken under
    depth               versions of groups that may be under way: at most (depth + 1) *
                        groups_per_version are. By default 2, or max_age if that is less
    when_old            `wait`: a take leaves room for older groups under way, so that none gets
                        too old; `drop`, `again`: what got too old is discarded, or generated again;
                        `mask`: it is delivered with `masked`; `keep`: it is delivered
    order               of a take: `old` by start; `fresh`, the newest first; or `batch`: each group
                        is for one version, fixed when it begins, and repeated for that one
    attempts            how often a group is tried before it is discarded; not under `wait`, which
                        discards none
    slot_lease          seconds until a dead generator's slot comes back
    longest             seconds after which a slot ends even if its generator lives
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    groups_per_version: Annotated[int, Field(ge=1, le=MOST)]
    max_age: _Versions
    depth: _Versions | None = None
    when_old: Literal["wait", "drop", "again", "mask", "keep"] = "wait"
    order: Literal["old", "fresh", "batch"] = "old"
    attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    slot_lease: Annotated[float, Field(gt=0, le=LONGEST)] = 60.0
    longest: Annotated[float, Field(gt=0, le=LONGEST)] = 6 * 3600.0

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Check settings from a payload; `SettingError` names the one that cannot work."""
        try:
            return cls(**given)
        except ValidationError as refusal:
            raise SettingError(*first_problem(refusal, "policy")) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.depth is not None and self.depth > self.max_age:
            raise ValueError(
                f"depth {self.depth} is more than max_age {self.max_age}: groups would be under "
                "way that are too old by the time they are taken"
            )
        if self.order == "fresh" and self.when_old == "wait":
            raise ValueError(
                "order 'fresh' takes the newest groups first, so that old ones never get their "
                "turn, and when_old 'wait' waits for them: use order 'old', or another when_old"
            )
        return self

    @property
    def most_outstanding(self) -> int:
        """Groups that may be under way: slots, open and ready groups."""
        return (self.in_depth + 1) * self.groups_per_version

    @property
    def in_depth(self) -> int:
        """The depth in force."""
        return min(self.max_age, 2) if self.depth is None else self.depth

    def check_room(self, config: TaskConfig) -> None:
        """Refuse a policy whose groups would not fit in the buffer."""
        items = self.most_outstanding * config.group_size
        if items > config.max_buffer_size:
            raise SettingError(
                "max_buffer_size",
                f"{config.max_buffer_size} items are less than depth {self.in_depth} and "
                f"groups_per_version {self.groups_per_version} need: ({self.in_depth} + 1) * "
                f"{self.groups_per_version} groups of {config.group_size} are {items}",
            )

    def check_take(self, groups: int) -> None:
        """Refuse a batch that the policy never allows at once."""
        if groups > self.groups_per_version:
            raise SettingError(
                "groups_per_version",
                f"{self.groups_per_version} groups are trained on under one version, and a take "
                f"asks for {groups}: take fewer, or raise groups_per_version",
            )

    def to_redis(self) -> list[str | int]:
        """The flat list that `set_policy.lua` stores, with what else scripts need."""
        stored: dict[str, Any] = {
            **self.model_dump(),
            "depth": self.in_depth,
            "slot_lease_ms": int(self.slot_lease * 1000),
            "longest_ms": int(self.longest * 1000),
        }
        stored["packed"] = json.dumps(stored)
        return [part for pair in stored.items() for part in pair]

    @classmethod
    def from_redis(cls, flat: Any) -> Self | None:
        """Read back what is in force; None if no policy was set."""
        found = text_fields(flat)
        known: dict[str, Any] = {name: found[name] for name in cls.model_fields if name in found}
        return cls(**known) if known else None
