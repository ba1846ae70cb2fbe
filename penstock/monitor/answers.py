"""What every handler of the monitor shares: how it refuses, and how it reads a query."""

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

Handler = Callable[[Request], Awaitable[Response]]
_HIGHEST = 9  # digits


def as_json(found: Any) -> str:
    """JSON that every browser reads, whatever others put into it: a number that JSON lacks is its
    name, and half a surrogate pair stays an escape."""
    try:
        return json.dumps(found, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(found), separators=(",", ":"))


def _finite(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return str(found) if isinstance(found, float) and not math.isfinite(found) else found


class Answer(JSONResponse):
    """An answer in such JSON, which no browser takes for something else."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        super().init_headers({"X-Content-Type-Options": "nosniff", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return as_json(content).encode()


def refused(status: int, reason: str) -> Response:
    return Answer({"success": False, "message": reason}, status)


def number(request: Request, name: str, default: int, most: int = 999_999_999) -> int:
    """A whole number in a query; `ValueError` names it."""
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > _HIGHEST:
        raise ValueError(f"`{name}` must be a whole number")
    return min(int(text), most)


def real(request: Request, name: str) -> float | None:
    """A number in a query, or None where it is absent or empty."""
    text = request.query_params.get(name, "")
    try:
        return float(text) if text else None
    except ValueError:
        raise ValueError(f"`{name}` must be a number") from None
