"""The tool's `config` in the host's YAML: verl's keys with verl's defaults, and a few more."""

import difflib
import logging
import math
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ground import SettingError
from ground.keys import check_name
from ground.numbers import MOST, shown
from ground.redis.connect import AnyRedis, target_of
from ground.redis.url import RedisTarget, parse_redis_url
from ground.server.server import running_server
from ground.settings import GroundSettings
from ground.shares import read_share
from jail.models import LANGUAGES, MAX_TIMEOUT, Seconds

log = logging.getLogger("penstock.tool")


class ToolConfig(BaseModel):
    """The keys under `config:`. Unknown keys are ignored, with a warning."""

    model_config = ConfigDict(frozen=True, extra="allow")

    # verl's
    type: str = "native"
    num_workers: int = Field(10, ge=1, le=MOST, description="Programs of one event loop at once.")
    rate_limit: int = Field(
        10, ge=1, le=MOST, description="The gate's limit, if no gate of that name exists yet."
    )
    default_timeout: Seconds = Field(30.0, description="Seconds a program may take.")
    default_language: str = "python"
    enable_global_rate_limit: bool = Field(
        True, description="False: programs go to `ungated_queue`."
    )
    sandbox_fusion_url: str = Field("", description="The workers' to know; only noted here.")
    memory_limit_mb: int | None = Field(1024, ge=1, le=1 << 20)

    # Penstock's own
    redis_url: str | None = Field(None, description="Unset: PENSTOCK_REDIS_URL.")
    queue: str = "code"
    ungated_queue: str = "code-ungated"
    gate: str = Field("code", description="The gate that the workers of `queue` run under.")
    share: str | None = Field(
        None, description="The share of the queue that calls belong to. Unset: PENSTOCK_SHARE."
    )
    cost: int = Field(1, ge=1, le=MOST, description="What a program takes of the gate's limit.")
    max_timeout: Seconds = Field(
        60.0, description="The most that a model may ask for; at least `default_timeout`."
    )
    max_wait: float = Field(3600.0, gt=0, le=MOST, description="Seconds until a call is given up.")
    max_output: int = Field(
        8192, ge=64, le=MOST, description="Characters of output that a model is shown."
    )
    stateful: bool = Field(False, description="One interpreter for all calls of a trajectory.")

    @classmethod
    def read(cls, config: Mapping[str, Any] | None) -> Self:
        try:
            read = cls.model_validate(dict(config or {}))
        except ValidationError as refusal:
            first = refusal.errors(include_url=False)[0]
            key = str(first["loc"][0]) if first["loc"] else "config"
            problem = first["msg"].removeprefix("Value error, ")
            raise SettingError(key, f"{problem} (got {shown(first['input'])})") from None
        if read.redis_url is not None:
            parse_redis_url(read.redis_url, "redis_url")  # refused now, and shown to nobody
        if read.model_extra:
            unknown = ", ".join(map(_with_the_likely, sorted(read.model_extra)))
            log.warning("the tool ignores unknown settings: %s", unknown)
        return read

    @property
    def longest(self) -> float:
        """The most seconds that a program may take, in any call."""
        return max(self.max_timeout, self.default_timeout)

    @property
    def destination(self) -> str:
        """The queue that programs go to."""
        return self.queue if self.enable_global_rate_limit else self.ungated_queue

    @field_validator("default_language")
    @classmethod
    def _language_is_known(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"known are {', '.join(sorted(LANGUAGES, key=str.lower))}")
        return language

    @field_validator("share")
    @classmethod
    def _share_is_a_name(cls, share: str | None) -> str | None:
        return share if share is None else read_share(share)

    @field_validator("queue", "ungated_queue", "gate")
    @classmethod
    def _names_are_names(cls, name: str) -> str:
        return check_name(name, "it")


def _with_the_likely(key: str) -> str:
    likely = difflib.get_close_matches(key, ToolConfig.model_fields, n=1)
    return f"{key} (is it {likely[0]}?)" if likely else key


def seconds_of(given: Any) -> float | None:
    """A time limit as models write it; None if it is none."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        seconds = float(given)
    except (ValueError, OverflowError):
        return None
    return min(seconds, MAX_TIMEOUT) if seconds > 0 and not math.isnan(seconds) else None


def redis_here(given: AnyRedis | None = None) -> RedisTarget:
    """The one given, else PENSTOCK_REDIS_URL, else the embedded Redis that a `penstock` command
    runs in the data directory. Starts none: it would end with the trainer, and take the jobs along.
    """
    if given is not None:
        return target_of(given)
    settings = GroundSettings.load()
    if settings.redis_url is not None:
        return parse_redis_url(settings.redis_url.get_secret_value())
    found = running_server(settings.data_dir)
    if found is None:
        raise SettingError(
            "PENSTOCK_REDIS_URL",
            "is not set, and no server runs in PENSTOCK_DATA_DIR "
            f"({settings.data_dir.absolute()}): name the Redis that the workers use, "
            "redis://host:6379, here or as `redis_url` in the tool's config",
        )
    return found
