"""How every handler of the monitor answers and refuses."""

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response


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
