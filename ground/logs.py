"""Logs are structured, with one correlation id from the trainer's call to the sandbox. If there is
a trace, its ids are in them too.

Penstock's libraries only log; the process that owns the terminal calls
`configure_logging` once.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

_correlation: ContextVar[str] = ContextVar("penstock_correlation", default="")
# All but tab and newline; and what turns the direction of writing, or ends a line elsewhere.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_COLOUR = re.compile("\x1b\\[[0-9;]*m")  # as RQ writes it for a terminal
_NOISY = ("httpx", "httpx2", "httpcore", "openai")  # a line per request, at INFO
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


def visible(text: str) -> str:
    """The text with control characters written out: a name from elsewhere steers no terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def encodable(text: str) -> str:
    """The text with what UTF-8 cannot encode written out: it may quote half a surrogate pair."""
    return text.encode(errors="backslashreplace").decode()


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
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel("WARNING" if level == "INFO" else level)


def _stamp(record: logging.LogRecord) -> bool:
    record.correlation = _correlation.get()
    # In the process only if somebody traces, or its packages do.
    if (api := sys.modules.get("opentelemetry.trace")) is not None:
        context = api.get_current_span().get_span_context()
        if context.is_valid:
            record.trace_id, record.span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    return True


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD}


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _COLOUR.sub("", record.getMessage()),
        }
        if correlation := getattr(record, "correlation", ""):
            line["correlation"] = correlation
        line |= {name: value for name, value in _extras(record).items() if name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return visible(json.dumps(line, default=str, ensure_ascii=False))


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_iso(record.created), f"{record.levelname:<7}", record.name, record.getMessage()]
        parts += [f"{key}={value}" for key, value in _extras(record).items()]
        if correlation := getattr(record, "correlation", ""):
            parts.append(f"[{correlation}]")
        line = " ".join(parts)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return visible(_COLOUR.sub("", line))


def _iso(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created % 1 * 1000):03d}Z"
