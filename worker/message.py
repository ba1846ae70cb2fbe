"""What requests and results have in common: read and written whole, refused in one sentence."""

from typing import Any, ClassVar, Self

from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from ground.errors import PenstockError
from ground.schema import Versioned


class Message(Versioned):
    """JSON on the wire, of this schema version or the one before it."""

    REFUSAL: ClassVar[type[PenstockError]]

    @classmethod
    def read(cls, message: dict[str, Any]) -> Self:
        """From JSON. Raises `VersionError`, or the class's own refusal."""
        if not isinstance(message, dict):
            raise cls.REFUSAL(f"{cls.__name__} is a JSON object, not {type(message).__name__}")
        return super().read(message)

    def dump(self) -> dict[str, Any]:
        """As JSON, for `read` on the other side."""
        return self.model_dump(mode="json")

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_in_one_sentence(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as refusal:
            raise cls.REFUSAL(f"{cls.__name__}: {_sentence(refusal)}") from None


def _sentence(refusal: ValidationError) -> str:
    first = refusal.errors(include_url=False)[0]
    where = str(first["loc"][0]) if first["loc"] else "message"
    if first["type"] == "value_error":
        return f"{where} {first['msg'].removeprefix('Value error, ')}"
    shown = "" if first["type"] == "missing" else f" (got {first['input']!r:.60})"
    return f"{where}: {first['msg']}{shown}"
