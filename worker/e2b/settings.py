"""The settings of the E2B face of this machine."""

import re

from pydantic import Field, SecretStr, field_validator

from ground.settings import Settings
from jail.network.rules import listed, rules

_MOST_WARM = 1000
ADDRESS = re.compile(r"http://(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:\d{1,5})?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}")


class E2bSettings(Settings):
    """The E2B protocol over session sandboxes."""

    e2b_api_key: SecretStr | None = Field(
        None,
        description="The key that clients send as `E2B_API_KEY`. Some SDKs take only"
        " `e2b_` and 40 characters of 0-9a-f.",
    )
    e2b_patience: float = Field(
        20.0,
        gt=0,
        le=55,
        description="Seconds that a creation waits for its STARTING permit before it answers 503.",
    )
    e2b_address: str = Field(
        "",
        description="Where the other machines' servers reach this one: `http://10.0.0.5:3000`."
        " Unset: the address and port that it listens on.",
    )
    e2b_warm: str = Field(
        "",
        description="How many sandboxes each server keeps ready for creations: `8`, or by"
        " template, `base=8,task:1=4`. Empty: none.",
    )
    e2b_max_hours: float = Field(
        24, gt=0, description="The longest time to live that one request may ask for, in hours."
    )
    e2b_network: str = Field(
        "",
        description="What a sandbox may reach if its creator names nothing: rules of `host:port`"
        " with commas, within `PENSTOCK_SESSION_NETWORK`. Empty: nothing.",
    )

    e2b_image_metadata: str = Field(
        "",
        description="The metadata key that names the image of a sandbox whose template is `base`,"
        " as slime's `SLIME_AGENT_SANDBOX_IMAGE_METADATA_KEY` does.",
    )

    @field_validator("e2b_network")
    @classmethod
    def _rules_can_be_read(cls, text: str) -> str:
        rules(listed(text))
        return text

    @field_validator("e2b_warm")
    @classmethod
    def _warm_can_be_read(cls, text: str) -> str:
        warm_sizes(text)
        return text

    @property
    def warm(self) -> dict[str, int]:
        """How many of each template."""
        return warm_sizes(self.e2b_warm)

    @field_validator("e2b_address")
    @classmethod
    def _address_is_one(cls, address: str) -> str:
        if address and not ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is no address like http://10.0.0.5:3000")
        return address


def warm_sizes(text: str) -> dict[str, int]:
    """Read the sizes of pools: `8`, or `base=8,task:1=4`. Raises `ValueError`."""
    sizes: dict[str, int] = {}
    for word in text.replace(",", " ").split():
        template, _, size = word.rpartition("=")
        if not size.isdecimal() or int(size) > _MOST_WARM:
            raise ValueError(f"{word!r} is none of N and TEMPLATE=N, with N up to {_MOST_WARM}")
        if template and not _IMAGE.fullmatch(template):
            raise ValueError(f"{template!r:.150} is no name of a template")
        sizes[template or "base"] = int(size)
    return sizes
