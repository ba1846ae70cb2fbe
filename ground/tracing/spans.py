"""Spans, which cost next to nothing unless somebody asked for them.

A process traces if its environment names an exporter (`OTEL_…`), or if its program has set up
OpenTelemetry's SDK itself. Else no line of OpenTelemetry is imported, and each span is `OFF`.

What goes into a span is bounded, and never code, output, arguments or the text of an error: those
may hold secrets, and a model wrote them.
"""

import hashlib
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from ground.logs import encodable, visible
from ground.tracing.asked import asked

Value = str | int | float | bool
Kind = Literal["internal", "client", "server", "producer", "consumer"]

LONGEST = 256  # characters of a name or an attribute
MOST_LINKS = 128  # as the SDK's own default
_SDK = "opentelemetry.sdk.trace"


class Span:
    """A span that nobody asked for does nothing."""

    __slots__ = ()

    traceparent = ""
    """What carries it to another process; empty if there is nothing to carry."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: object
    ) -> None: ...

    def set(self, name: str, value: Value) -> None:
        """Set an attribute."""

    def rename(self, name: str) -> None: ...

    def failed(self, why: str) -> None:
        """The span's work did not succeed. `why` is a word for machines, such as an error's
        class."""

    def end(self) -> None: ...

    def current(self) -> "Span":
        """Make it the parent of the spans that begin in a `with` block. It may outlast the
        block."""
        return self


OFF = Span()


class _Recorded(Span):
    """A span of the SDK's, recorded or left out by its sampler."""

    __slots__ = ("_span", "_tokens")

    def __init__(self, span: Any) -> None:
        self._span = span
        self._tokens: list[Any] = []

    @property
    def traceparent(self) -> str:  # type: ignore[override]
        context = self._span.get_span_context()
        if not context.is_valid:
            return ""
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def __enter__(self) -> Self:
        from opentelemetry import context, trace

        self._tokens.append(context.attach(trace.set_span_in_context(self._span)))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | object,
    ) -> None:
        self._leave()
        if kind is not None:
            self.failed(kind.__name__)
        self.end()

    def _leave(self) -> None:
        from opentelemetry import context

        context.detach(self._tokens.pop())

    def set(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, bounded(value))

    def rename(self, name: str) -> None:
        self._span.update_name(bounded(name))

    def failed(self, why: str) -> None:
        from opentelemetry.trace import Status, StatusCode

        self._span.set_attribute("error.type", bounded(why))
        self._span.set_status(Status(StatusCode.ERROR))

    def end(self) -> None:
        self._span.end()

    def current(self) -> "Span":
        return _Block(self._span)


class _Block(_Recorded):
    """The `with` block of a span that somebody else ends."""

    __slots__ = ()

    def __exit__(self, *_: object) -> None:
        self._leave()


class _Process:
    """Whether this process traces, and with what."""

    def __init__(self) -> None:
        self.tracer: Any = None
        self.service = ""
        self._asked: bool | None = None  # whether the environment asks; None: nobody has looked
        self._lock = threading.Lock()

    def use(self, provider: Any) -> None:
        """Send the spans of this process there. None: where the environment says, from now on."""
        from ground.tracing import sdk

        self._asked = None
        self.tracer = None if provider is None else sdk.tracer_of(provider)

    def on(self) -> bool:
        if self.tracer is None and (self._asked is not False or _SDK in sys.modules):
            self._begin()
        return self.tracer is not None

    def _begin(self) -> None:
        with self._lock:
            if self._asked is None:
                self._asked = asked("TRACES")
            if self.tracer is None and (self._asked or _SDK in sys.modules):
                from ground.tracing import sdk

                self.tracer = sdk.tracer(self.service, by_environment=self._asked)
                self._asked = False  # it has been answered


_process = _Process()
on, use = _process.on, _process.use


def service() -> str:
    """The name of this process in traces, empty until it is named."""
    return _process.service


def named(service: str) -> None:
    """Name this process in traces, unless OTEL_SERVICE_NAME does."""
    _process.service = service


def span(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: str = "",
) -> Span:
    """A span that covers a `with` block. An error that leaves the block makes it a failure.

    Its parent is the current span, or what a `traceparent` from elsewhere names.
    """
    return begun(name, attributes, kind=kind, parent=parent) if on() else OFF


def begun(
    name: str,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: "str | Span" = "",
    at: float | None = None,
    id: int = 0,
    links: Iterable[str] = (),
) -> Span:
    """Begin a span now, or at a time (`time.time()`); its `end` ends it.

    `id` makes it the same span in whichever process it ends.
    """
    if not on():
        return OFF
    from ground.tracing import sdk

    came_from = parent.traceparent if isinstance(parent, Span) else parent
    with sdk.next_id(id):
        return _Recorded(
            _process.tracer.start_span(
                bounded(name),
                context=sdk.context_of(came_from),
                kind=sdk.kind_of(kind),
                attributes={key: bounded(value) for key, value in (attributes or {}).items()},
                links=sdk.links_to(links, MOST_LINKS),
                start_time=None if at is None else int(at * 1e9),
            )
        )


def record(
    name: str,
    began: float,
    ended: float,
    attributes: Mapping[str, Value] | None = None,
    *,
    kind: Kind = "internal",
    parent: "str | Span" = "",
    failed: str = "",
    id: int = 0,
    links: Iterable[str] = (),
) -> None:
    """Record a span that is over already, in seconds as `time.time()` counts them."""
    past = begun(name, attributes, kind=kind, parent=parent, at=began, id=id, links=links)
    if isinstance(past, _Recorded):
        if failed:
            past.failed(failed)
        past._span.end(int(max(began, ended) * 1e9))


def current() -> str:
    """The `traceparent` of the span that is current here; empty without one."""
    if not on():
        return ""
    from opentelemetry import trace

    return _Recorded(trace.get_current_span()).traceparent


def headers() -> dict[str, str]:
    """The headers of an HTTP request that is part of the current span."""
    parent = current()
    return {"traceparent": parent} if parent else {}


def flush(seconds: float = 5.0) -> None:
    """Send what is ready, for a process that ends without its exit handlers."""
    if _process.tracer is not None:
        from ground.tracing import sdk

        sdk.flush(seconds)


def execution_id(job: str, execution: str) -> int:
    """The id of an execution's span, for any process: if its worker dies, another one ends it."""
    digest = hashlib.sha256(f"{job}:{execution}".encode()).digest()
    return int.from_bytes(digest[:8]) or 1


def message(operation: str, where: str, id: str = "", **more: Value) -> dict[str, Value]:
    """The attributes of a queue's or a buffer's span, as OpenTelemetry's conventions name them."""
    attributes: dict[str, Value] = {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.destination.name": where,
    }
    if id:
        attributes["messaging.message.id"] = id
    return attributes | {f"penstock.{name}": value for name, value in more.items()}


def bounded(value: Value) -> Value:
    """Text of any origin is short, of visible characters, and can be encoded."""
    if not isinstance(value, str):
        return value
    text = encodable(visible(value[:LONGEST]))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def ago(seconds: float) -> float:
    """A moment of the past, as `record` takes it."""
    return time.time() - seconds
