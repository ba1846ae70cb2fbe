"""A request may ask the monitor for a run, a page of a list, or one of some words."""

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler
from pydantic_core import core_schema

from penstock.monitor.views import View

MOST = 200  # rows of one page


async def _view(request: Request, run: str = "") -> View:
    """The view of the run; empty for the monitor's own."""
    found: View = request.app.state.views.of(run)
    return found


class OneOf:
    """This annotation marks a text that is one of these words."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = list(words)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, *_: Any) -> dict[str, Any]:
        return {"enum": self._words}

    def _check(self, word: str) -> str:
        if word not in self._words:
            raise ValueError(f"it must be one of {', '.join(self._words)}")
        return word


# A field that the page leaves empty is as if it were not there.
_EMPTY = BeforeValidator(lambda text: text or None)

Looked = Annotated[View, Depends(_view)]
Whole = Annotated[int, Field(ge=0, le=999_999_999)]
Count = Annotated[Whole, AfterValidator(lambda count: min(count, MOST))]
Perhaps = Annotated[Whole | None, _EMPTY]
Real = Annotated[float | None, _EMPTY]
