"""The limiter's settings, and how the names that uni-agent's users know are read."""

import logging
import os
from typing import Any

from pydantic import AliasChoices, Field, model_validator

from ground import SettingError
from ground.settings import Settings

log = logging.getLogger("penstock.limiter")

_NAMES = ("PENSTOCK_MAX_STARTING", "MODAL_MAX_STARTING")
_SHARE, _WORKERS = "MODAL_MAX_STARTING_PER_WORKER", "UNIAGENT_NUM_WORKERS"
_THEIR_WORKERS = "8"  # uni-agent's default


class LimiterSettings(Settings):
    """Settings of the gates that Penstock itself opens: `LimiterSettings.load().max_starting`."""

    max_starting: int = Field(
        128,
        ge=1,
        validation_alias=AliasChoices(*_NAMES),
        description="Session sandboxes that may be starting at once, over the whole fleet.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fleet_from_shares(cls, given: Any) -> Any:
        """A limit per worker, if the fleet's is not set: never divided, only multiplied."""
        if not isinstance(given, dict) or given.keys() & {"max_starting", *_NAMES}:
            return given
        share = os.environ.get(_SHARE)
        if not share:
            return given
        workers = os.environ.get(_WORKERS) or _THEIR_WORKERS
        fleet = max(1, _whole(_SHARE, share) * _whole(_WORKERS, workers))
        log.warning(
            "%s=%s times %s=%s is taken as %s=%d for the whole fleet; set that one instead",
            _SHARE, share, _WORKERS, workers, _NAMES[0], fleet,
        )  # fmt: skip
        return given | {"max_starting": fleet}


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingError(name, f"must be a whole number, not {text!r}") from None
