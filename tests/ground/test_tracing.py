"""Spans: none without being asked for, bounded text, and where they are sent."""

import json
import logging
import os
import subprocess
import sys
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from ground import logs, tracing
from ground.tracing import sdk, spans
from ground.tracing.asked import asked
from ground.tracing.spans import OFF
from tests.harness.traces import recorded

HOSTILE = "\x1b[31mred\ud800\u202e" + "x" * 5000


def test_nothing_of_the_sdk_is_imported_and_no_span_is_made_unless_asked_for() -> None:
    program = (
        "import sys, ground, limiter, buffer, worker, worker.concurrent.worker\n"
        "from ground import tracing\n"
        "assert tracing.span('a') is tracing.spans.OFF and tracing.current() == ''\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry.sdk.trace',"
        " 'opentelemetry.exporter'))])"
    )
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=clean, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "x"}, False),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_METRICS_EXPORTER": "console"}, False),
    ],
)
def test_opentelemetrys_own_variables_ask_for_traces(monkeypatch, environment, wanted) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert asked("TRACES") is wanted


def test_hostile_text_is_bounded_visible_and_can_be_encoded() -> None:
    with recorded() as found:
        with tracing.span(HOSTILE, {"a": HOSTILE}) as span:
            span.set("b", HOSTILE)
        (made,) = found.all()
        texts = [made.name, *(str(value) for value in (made.attributes or {}).values())]
        assert len(texts) == 3
        for text in texts:
            assert len(text.encode()) <= spans.LONGEST + 3
            assert text.isprintable()


def test_an_error_leaves_its_class_in_the_span_and_no_word_of_its_text() -> None:
    with recorded() as found:
        with pytest.raises(ValueError, match="s3cret"), tracing.span("a"):
            raise ValueError("s3cret")
        assert (found.one("a").attributes or {})["error.type"] == "ValueError"
        assert not found.one("a").status.is_ok
        assert "s3cret" not in found.one("a").to_json()


def test_a_traceparent_from_elsewhere_is_the_parent_and_what_is_none_is_left_out() -> None:
    with recorded() as found:
        with tracing.span("outer") as outer:
            parent = outer.traceparent
        for number, text in enumerate((parent, "00-zz", "", 7, "00-" + "0" * 32 + "-" + "0" * 16)):
            tracing.begun(f"in {number}", parent=text).end()  # type: ignore[arg-type]
        parents = [found.one(f"in {number}").parent for number in range(5)]
        ids = [parent and parent.span_id for parent in parents]
        assert ids == [found.one("outer").context.span_id, None, None, None, None]


def test_a_caller_that_is_not_sampled_stays_so_elsewhere() -> None:
    with recorded() as found:
        with tracing.span("a", parent="00-" + "1" * 32 + "-" + "2" * 16 + "-00") as span:
            assert span.traceparent.startswith("00-" + "1" * 32)
            assert span.traceparent.endswith("-00")
        assert list(found.all()) == []


def test_log_lines_carry_the_ids_of_the_trace_and_the_span() -> None:
    record = logging.makeLogRecord({"msg": "said"})
    with recorded(), tracing.span("a") as span:
        logs._stamp(record)
    line = json.loads(logs._JsonLines().format(record))
    assert span.traceparent.startswith(f"00-{line['trace_id']}-{line['span_id']}-")


def test_spans_are_sent_within_the_time_that_is_given(monkeypatch) -> None:
    """The SDK's provider waits for as long as its exporter tries, which takes longer."""
    monkeypatch.setattr(sdk, "_providers", [])
    over, flushed = threading.Event(), threading.Event()

    class Provider(TracerProvider):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            over.wait(5)
            flushed.set()
            return True

    tracing.use(Provider(shutdown_on_exit=False))
    try:
        tracing.flush(0.01)
        assert not flushed.is_set()
        over.set()
        tracing.flush(60)
        assert flushed.is_set()
    finally:
        tracing.use(None)


def test_what_is_asked_for_and_not_installed_is_a_warning(monkeypatch, caplog) -> None:
    said = warned(monkeypatch, caplog, OTEL_TRACES_EXPORTER="carrier_pigeon")
    assert "'carrier_pigeon'" in said
    assert "OTEL_TRACES_EXPORTER" in said
    assert "penstock-rl[otel]" in said


def test_a_variable_that_the_sdk_refuses_is_a_warning(monkeypatch, caplog) -> None:
    said = warned(
        monkeypatch, caplog, OTEL_TRACES_EXPORTER="none,", OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT="many"
    )
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in said


@pytest.mark.parametrize("raised", ["ImportError", "AttributeError", "TypeError"])
def test_an_installation_that_cannot_be_imported_is_a_warning_for_traces_and_for_figures(
    tmp_path, raised
) -> None:
    broken = tmp_path / "opentelemetry"
    broken.mkdir()
    (broken / "__init__.py").write_text(f"raise {raised}('broken')")
    program = (
        f"import asyncio, sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from ground import tracing\n"
        "from ground.tracing.figures import push\n"
        "assert tracing.span('a') is tracing.span('b') is tracing.spans.OFF\n"
        "asyncio.run(push(None, 'a'))"
    )
    environment = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_METRICS_EXPORTER": "otlp"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for said, signal in zip(ran.stderr.splitlines(), ("traces", "metrics"), strict=True):
        assert f"asks for {signal}, and there are none: broken" in said
        assert ("penstock-rl[otel]" in said) is (raised == "ImportError")


def warned(monkeypatch, caplog, **variables: str) -> str:
    """The one warning, with these set; no span is made."""
    with monkeypatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        patched.setattr(trace, "_TRACER_PROVIDER", None)
        tracing.use(None)
        assert tracing.span("a") is OFF
        assert tracing.span("b") is OFF
    tracing.use(None)
    (said,) = caplog.messages
    return said
