"""Traces by OpenTelemetry: off until somebody asks for them, and free while they are off.

    with tracing.span("compile", {"penstock.language": "cpp"}) as span:
        …
        span.set("penstock.cached", True)

`spans` is all that other code uses. `sdk` and what serves or sends is imported only when tracing
is on.
"""

from ground.tracing.spans import (
    Span,
    Value,
    ago,
    begun,
    current,
    flush,
    headers,
    message,
    named,
    on,
    record,
    service,
    span,
    use,
)

__all__ = [
    "Span",
    "Value",
    "ago",
    "begun",
    "current",
    "flush",
    "headers",
    "message",
    "named",
    "on",
    "record",
    "service",
    "span",
    "use",
]
