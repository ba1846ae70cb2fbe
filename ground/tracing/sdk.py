"""The SDK's side: which tracer, which exporters, and what stands behind a `traceparent`.

Imported only when tracing is on. If the program has set up a tracer provider, that one is used.
Else one is made from OpenTelemetry's own variables. It is Penstock's own: setting it for the whole
process would be the program's to do.
"""

import logging
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanContext, SpanKind

log = logging.getLogger("penstock.tracing")

SCOPE = "penstock"
INSTALL = "pip install 'penstock-rl[otel]'"
_next_id: ContextVar[int] = ContextVar("penstock_next_span_id", default=0)
_providers: list[Any] = []  # to be flushed


def tracer(service: str, *, by_environment: bool) -> Any:
    """The tracer, or None: nobody asked, or what was asked for cannot be had."""
    try:
        from opentelemetry import trace

        provider: Any = trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider):  # the program has set up none
            provider = _made(service) if by_environment else None
        return provider and tracer_of(provider)
    except Exception as wrong:  # noqa: BLE001 - whatever an installation raises, no job fails by it
        say_none("traces", wrong)
        return None


def say_none(signal: str, wrong: Exception) -> None:
    """Log why there are no traces, or metrics: a package is missing or broken, or refuses a
    variable."""
    remedy = f"; {INSTALL}" if isinstance(wrong, ImportError | LookupError) else ""
    log.warning("OTEL_… asks for %s, and there are none: %s%s", signal, wrong, remedy)


def tracer_of(provider: Any) -> Any:
    _providers.append(provider)
    return provider.get_tracer(SCOPE, version())


def _made(service: str) -> Any:
    """A provider of OpenTelemetry's variables."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    exporters = exporters_of("traces", "OTEL_TRACES_EXPORTER")

    class Ids(RandomIdGenerator):
        def generate_span_id(self) -> int:
            return _next_id.get() or super().generate_span_id()

    provider = TracerProvider(resource=resource_of(service), id_generator=Ids())
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def resource_of(service: str) -> Any:
    """The resource names the process that sends spans; a name in the environment wins over
    Penstock's."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource

    named = service and not os.environ.get("OTEL_SERVICE_NAME")
    return Resource.create({SERVICE_NAME: service} if named else {})


def exporters_of(signal: str, variable: str) -> list[Any]:
    """The exporters that the variable names. Raises `LookupError` for one that is not installed."""
    names = [name.strip() for name in (os.environ.get(variable) or "otlp").split(",")]
    return [_named(signal, variable, name).load()() for name in names if name and name != "none"]


def _named(signal: str, variable: str, name: str) -> metadata.EntryPoint:
    own = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    protocol = os.environ.get(own) or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if name == "otlp":
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    for found in metadata.entry_points(group=f"opentelemetry_{signal}_exporter", name=name):
        return found
    raise LookupError(f"no exporter {name!r} is installed, which {variable} names")


def version() -> str:
    try:
        return metadata.version("penstock-rl")
    except metadata.PackageNotFoundError:  # on the path, but not installed
        return ""


def flush(seconds: float) -> None:
    """Wait so long, and no longer: the SDK's own provider waits for as long as its exporter
    tries."""
    ends = time.monotonic() + seconds
    for provider in _providers:
        if hasattr(provider, "force_flush"):
            given = (int(seconds * 1000),)
            sending = threading.Thread(target=provider.force_flush, args=given, daemon=True)
            sending.start()
            sending.join(max(0.0, ends - time.monotonic()))


@contextmanager
def next_id(id: int) -> Iterator[None]:
    """The span that begins in the block gets this id; 0 is any. A provider of the program's ignores
    it."""
    if not id:
        yield
        return
    token = _next_id.set(id)
    try:
        yield
    finally:
        _next_id.reset(token)


def context_of(traceparent: str) -> "Context | None":
    """None, the current one, for text that is no traceparent."""
    return _read(traceparent)[0]


def links_to(traceparents: Iterable[str], most: int) -> "list[Link]":
    from opentelemetry.trace import Link

    found = (_read(each)[1] for each in traceparents)
    contexts = {context.span_id: context for context in found if context is not None}
    return [Link(context) for context in list(contexts.values())[:most]]


def _read(traceparent: Any) -> "tuple[Context, SpanContext] | tuple[None, None]":
    from opentelemetry.context import Context
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    text = traceparent if isinstance(traceparent, str) else ""
    found = TraceContextTextMapPropagator().extract({"traceparent": text}, Context())
    span = get_current_span(found).get_span_context()
    return (found, span) if span.is_valid else (None, None)


def kind_of(kind: str) -> "SpanKind":
    from opentelemetry.trace import SpanKind

    return SpanKind[kind.upper()]
