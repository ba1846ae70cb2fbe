"""Versions of what crosses Redis or HTTP.

A message carries `v`. This release speaks the current and the previous one, so
that trainers and workers can be upgraded one after the other. Keys that a newer
minor release added are kept and passed on, not refused.
"""

from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, model_validator

from ground.errors import VersionError


class Versioned(BaseModel):
    """The base of every message; a subclass says which version it writes: `VERSION = 2`."""

    model_config = ConfigDict(extra="allow")

    VERSION: ClassVar[int] = 1
    v: int = 1

    @model_validator(mode="before")
    @classmethod
    def _written_in_this_version(cls, message: Any) -> Any:
        if not isinstance(message, dict) or "v" in message:
            return message
        return {"v": cls.VERSION} | message

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self:
        """Validate a message from the wire, of this version or the one before it."""
        found = message.get("v", 1)
        oldest = max(1, cls.VERSION - 1)
        if not isinstance(found, int) or not oldest <= found <= cls.VERSION:
            raise VersionError(
                f"{cls.__name__} has schema version {found!r}, and this release reads "
                f"{oldest} to {cls.VERSION}: upgrade the older side of trainer and worker"
            )
        return cls.model_validate(message if "v" in message else {"v": found} | message)
