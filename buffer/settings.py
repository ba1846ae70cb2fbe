"""Settings: `BufferSettings` of a process, from the environment; `TaskConfig` of a task.

A task's settings live in Redis next to its groups, so that every server and library
reads the same ones. The process's settings give their defaults.
"""

import json
import logging
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from ground import SettingError
from ground.lua import text_fields
from ground.settings import Settings

log = logging.getLogger(__name__)

DAY = 86400.0
LONGEST = 3650 * DAY
MOST = 2**53
# What scripts need besides times in milliseconds.
_FOR_SCRIPTS = (
    "group_size",
    "min_timeout_group_size_ratio",
    "max_buffer_size",
    "max_bytes",
    "done_max",
)


def first_problem(refusal: ValidationError, whole: str) -> tuple[str, str]:
    """The field that is wrong, or `whole` if they do not go together; and what is wrong."""
    first = refusal.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else whole
    return name, first["msg"].removeprefix("Value error, ")


class BufferSettings(Settings):
    """The settings of a process that serves or fills buffers."""

    buffer_host: str = Field("127.0.0.1", description="Address that the buffer server listens on.")
    buffer_port: int = Field(8889, ge=0, le=65535, description="Port of the buffer server.")
    buffer_token: SecretStr | None = Field(
        None, description="Bearer token that every request must carry. Unset: none is asked for."
    )
    generators: Path | None = Field(
        None,
        description="Folder of `*_generator.py` files. The built-in math task is always available.",
    )
    input_folders: str = Field(
        "",
        description="Folders that may hold the `input_file` of a rollout, separated by commas."
        " Unset: none.",
    )
    gateway_url: SecretStr | None = Field(
        None,
        description="URL of a gateway, its token as the password. Generators ask it, and have exact"
        " tokens.",
    )
    engine_hosts: str = Field(
        "",
        description="Hosts (`host` or `host:port`, commas between) allowed in a rollout's"
        " `remote_engine_url` and `remote_buffer_url`. Unset: any.",
    )
    buffer_group_size: int = Field(
        16, ge=1, description="Group size of a task before its first `/start_rollout`."
    )
    max_buffer_size: int = Field(
        1_000_000_000,
        ge=1,
        le=MOST,
        description="Most items that a task holds. An open group counts as full.",
    )
    max_buffer_bytes: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Most bytes that a task holds. Unset: half of what Redis may use.",
    )
    max_item_bytes: int = Field(
        16 * 1024 * 1024, ge=1, description="Size of the largest item that is accepted."
    )
    batch_lease: float = Field(
        600.0,
        gt=0,
        description="Seconds after which a batch without an acknowledgement is delivered again.",
    )
    batch_retain: float = Field(
        600.0, ge=1, description="Seconds for which a consumed batch can be fetched again."
    )
    late_window: float = Field(
        600.0,
        ge=0,
        description="Seconds after the end of a group during which its items count as late.",
    )
    longest_wait: float = Field(
        90.0,
        gt=0,
        le=90,
        description="Most seconds that a read waits or runs custom functions. slime's clients"
        " give up at 100.",
    )
    write_patience: float = Field(
        30.0, ge=0, description="Seconds that `/buffer/write` waits for room before it answers 429."
    )
    function_timeout: float = Field(
        30.0, gt=0, description="Seconds that a custom function may take for one group."
    )
    redis_patience: float = Field(
        15.0, ge=0, description="Seconds for which a call keeps trying while Redis is unreachable."
    )
    dump_rollouts: Path | None = Field(
        None, description="Folder that receives a JSON copy of every delivered batch."
    )

    @property
    def of_tasks(self) -> dict[str, Any]:
        """The settings of a task that are not given to the task itself."""
        return {
            "max_buffer_size": self.max_buffer_size,
            "max_bytes": self.max_buffer_bytes,
            "late_window": self.late_window,
            "lease": self.batch_lease,
            "retain": self.batch_retain,
        }

    def complete(self, config: "TaskConfig") -> "TaskConfig":
        """A task's settings, with those of this process in place of what was not given."""
        return TaskConfig.load(**self.of_tasks | config.model_dump(exclude_unset=True))


class TaskConfig(BaseModel):
    """The settings of one task, by the names slime's document gives them; times are in seconds.

        config = TaskConfig(group_size=8, group_timeout_seconds=600)

    group_size                    items of a group, as trained on
    min_valid_group_size_ratio    share of group_size that finishes a group
    min_valid_item_size_ratio     share of it that must be left after `filter_item`
    group_timeout_seconds         after its last write, until a group times out
    min_timeout_group_size_ratio  share of it with which a timed-out group is used; one with
                                  less is discarded
    max_buffer_size, max_bytes    most items and bytes held; open groups count as full. Without
                                  `max_bytes`: half of what Redis may use
    late_window                   after a group was closed, for which its items count as late
    lease                         until a batch that nobody acknowledged comes back
    retain                        for which a consumed batch can still be fetched
    grace, quarantine             for which discarded and quarantined groups stay readable
    idle_ttl                      after which a task without groups is forgotten
    done_max                      most closed groups that are remembered
    dialect                       whose defaults: `v0` slime's document's, `v1` today's slime's
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    group_size: Annotated[int, Field(ge=1, le=1_000_000)]
    min_valid_group_size_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    min_valid_item_size_ratio: Annotated[float, Field(ge=0, le=1)] = 0.7
    group_timeout_seconds: Annotated[float, Field(gt=0, le=LONGEST)] = 300.0
    min_timeout_group_size_ratio: Annotated[float, Field(ge=0, le=1)] = 0.7
    max_buffer_size: Annotated[int, Field(ge=1, le=MOST)] = 1_000_000_000
    max_bytes: Annotated[int | None, Field(ge=1, le=MOST)] = None
    late_window: Annotated[float, Field(ge=0, le=LONGEST)] = 600.0
    lease: Annotated[float, Field(gt=0, le=LONGEST)] = 600.0
    retain: Annotated[float, Field(ge=1, le=LONGEST)] = 600.0
    grace: Annotated[float, Field(ge=1, le=LONGEST)] = 3600.0
    quarantine: Annotated[float, Field(ge=1, le=LONGEST)] = 7 * DAY
    idle_ttl: Annotated[float, Field(ge=1, le=LONGEST)] = 7 * DAY
    done_max: Annotated[int, Field(ge=1, le=MOST)] = 1_000_000
    dialect: Literal["v0", "v1"] = "v0"

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Check settings from a payload; `SettingError` names the one that cannot work."""
        try:
            return cls(**given)
        except ValidationError as refusal:
            name, problem = first_problem(refusal, "settings")
            first = refusal.errors()[0]
            got = f" (got {first['input']!r})" if first["loc"] else ""  # else all of them
            raise SettingError(name, f"{problem}{got}") from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.group_size > self.max_buffer_size:
            raise ValueError(
                f"max_buffer_size {self.max_buffer_size} has no room for one group "
                f"of group_size {self.group_size}"
            )
        return self

    def warn(self) -> None:
        """Log what is allowed and seldom meant."""
        if self.min_valid_item_size_ratio <= 0.5:
            log.warning(
                "min_valid_item_size_ratio should be greater than 0.5: a group padded from "
                "half or less is mostly copies",
                extra={"min_valid_item_size_ratio": self.min_valid_item_size_ratio},
            )

    @property
    def finish_at(self) -> int:
        """Items that finish a group: truncated, as upstream does (8 · 0.7 is 5)."""
        return int(self.group_size * self.min_valid_group_size_ratio)

    @property
    def keep_at(self) -> int:
        """Items that a group must keep after filtering."""
        return int(self.group_size * self.min_valid_item_size_ratio)

    def to_redis(
        self, *, custom: bool, custom_meta: bool, pads: bool = False
    ) -> list[str | int | float]:
        """The flat list that `configure.lua` stores. What every script needs stands once more in
        `packed`, which costs them less to read than fields do. `pads` says that a function of the
        task's makes whole groups of short ones: the dialect v1 itself has none."""
        ms = {
            "group_timeout_ms": self.group_timeout_seconds,
            "open_ttl_ms": self.group_timeout_seconds + DAY,
            "late_ms": self.late_window,
            "retain_ms": self.retain,
            "grace_ms": self.grace,
            "quarantine_ms": self.quarantine,
            "idle_ttl_ms": self.idle_ttl,
        }
        given: dict[str, str | int | float] = self.model_dump(exclude_none=True)
        derived = {
            **{name: int(seconds * 1000) for name, seconds in ms.items()},
            "finish_at": self.finish_at,
            "most": 4 * self.group_size,
            "custom": int(custom),
            "custom_meta": int(custom_meta),
        }
        packed = {name: given[name] for name in _FOR_SCRIPTS if name in given} | derived
        if self.dialect == "v1" and not pads:
            packed |= {"min_timeout_group_size_ratio": 1.0, "finish_at": self.group_size}
        stored = {**given, **derived, "packed": json.dumps(packed)}
        return [part for pair in stored.items() for part in pair]

    @classmethod
    def from_redis(cls, flat: list[Any]) -> Self:
        """Read back what is in force; a later version may have stored more."""
        found = text_fields(flat)
        known: dict[str, Any] = {name: found[name] for name in cls.model_fields if name in found}
        return cls(**known)
