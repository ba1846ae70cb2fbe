"""Structured logs, with one correlation id from the trainer's call to the sandbox.

Libraries of ours only log; the process that owns the terminal calls
`configure_logging` once.
"""

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

_correlation: ContextVar[str] = ContextVar("penstock_correlation", default="")
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {
    "message", "asctime", "correlation", "color_message",  # uvicorn's copy for terminals
}  # fmt: skip


@contextmanager
def correlated(correlation: str) -> Iterator[str]:
    """Everything logged inside carries this id; so does what other tasks start inside."""
    token = _correlation.set(correlation)
    try:
        yield correlation
    finally:
        _correlation.reset(token)


def correlation_id() -> str:
    """The id of the call being served, or an empty string."""
    return _correlation.get()


def configure_logging(form: Literal["text", "json"] = "text", level: str = "INFO") -> None:
    """Send the log to stderr (stdout is for data), in one of two forms."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    handler.addFilter(_stamp)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)


def _stamp(record: logging.LogRecord) -> bool:
    record.correlation = _correlation.get()
    return True


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if correlation := getattr(record, "correlation", ""):
            line["correlation"] = correlation
        line |= {name: value for name, value in _extras(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_iso(record.created), f"{record.levelname:<7}", record.name, record.getMessage()]
        parts += [f"{key}={value}" for key, value in _extras(record).items()]
        if correlation := getattr(record, "correlation", ""):
            parts.append(f"[{correlation}]")
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _iso(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03d}Z"
