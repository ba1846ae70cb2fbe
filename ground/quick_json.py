"""JSON read and written in C, which refuses half a surrogate pair. Python's own way takes that."""

import json
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json, to_json


def read_json(data: bytes, otherwise: Callable[[bytes], Any] = json.loads) -> Any:
    """Read it; what is no JSON fails as `otherwise` says."""
    try:
        return from_json(data)
    except ValueError:
        return otherwise(data)


def write_json(value: Any, otherwise: Callable[[Any], bytes]) -> bytes:
    """Write it compactly, in UTF-8; or what cannot be written so, as `otherwise` does."""
    try:
        return to_json(value)
    except ValueError:
        return otherwise(value)
