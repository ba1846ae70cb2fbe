"""The spans of the test's own process, and those that others send to a collector."""

import contextlib
import gzip
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ground import tracing
from tests.harness.background import answering


class Spans:
    """What this process has ended so far."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """In the order of their beginning."""
        found = [span for span in self.all() if span.name == name]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def tree(self, root: ReadableSpan) -> dict[str, str]:
        """Each span below the root, with its parent's name. Of two alike, the later one."""
        ids = {span.context.span_id: span for span in self.all()}
        return {
            span.name: ids[span.parent.span_id].name if span.parent.span_id in ids else "?"
            for span in sorted(self.all(), key=lambda span: span.start_time or 0)
            if span.parent is not None and span.context.trace_id == root.context.trace_id
        }


@contextlib.contextmanager
def recorded() -> Iterator[Spans]:
    """This process traces for as long as the block lasts, into memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(provider)
    try:
        yield Spans(exporter)
    finally:
        tracing.use(None)


class Collector:
    """What an OTLP collector on loopback was sent, as protobuf over HTTP."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @contextlib.contextmanager
    def listening(self) -> Iterator["Collector"]:
        with answering(self._server):
            yield self

    def until(self, holds: Callable[[], Any], within: float = 60.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: bool(holds()), within), self._names()

    def named(self, name: str) -> list[Any]:
        """In the order of their beginning."""
        found = [span for span in list(self.spans) if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def children(self, parent: Any) -> list[str]:
        return [span.name for span in self.spans if span.parent_span_id == parent.span_id]

    def _names(self) -> list[str]:
        return [span.name for span in self.spans]

    def _take(self, path: str, body: bytes) -> None:
        with self._changed:
            if path == "/v1/traces":
                for part in ExportTraceServiceRequest.FromString(body).resource_spans:
                    self.services |= {
                        each.value.string_value
                        for each in part.resource.attributes
                        if each.key == "service.name"
                    }
                    self.spans += [span for scope in part.scope_spans for span in scope.spans]
            elif path == "/v1/metrics":
                for sent in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in sent.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope.metrics}
            self._changed.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector._take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        return Handler
