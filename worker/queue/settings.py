"""What a process that submits jobs reads from its environment."""

from pydantic import Field, field_validator

from ground import Settings
from ground.shares import check_share, read_share


class QueueSettings(Settings):
    """Settings of every process that submits jobs."""

    share: str = Field(
        "",
        description="The share of its queue that a `CodeQueue`'s jobs belong to, if it names none."
        " Unset: no share.",
    )

    @field_validator("share")
    @classmethod
    def _share_is_a_name(cls, share: str) -> str:
        return read_share(share)


def share_here(given: str | None) -> str:
    """The share that is given, or that of this process."""
    return QueueSettings.load().share if given is None else check_share(given)
