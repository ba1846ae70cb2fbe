"""A client's trace goes on in the E2B server: its sandbox's start and its commands."""

from e2b import Sandbox

from tests.harness.traces import Collector
from tests.worker.e2b.serving import E2bServer

SECRET = "s3cret"


def test_a_trace_goes_on_by_the_header_that_the_sdk_sends(tmp_path) -> None:
    trace = f"{7:032x}"
    headers = {"traceparent": f"00-{trace}-{9:016x}-01"}
    with Collector().listening() as collector:
        asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "20"}
        with E2bServer(tmp_path, **asked) as server:
            box = Sandbox.create(headers=headers, **server.options)
            box.commands.run(f"echo {SECRET}; exit 0", envs={"TOKEN": SECRET})
            box.kill()
            collector.until(lambda: collector.named("command"))
            collector.until(lambda: collector.named("DELETE /sandboxes/{id}"))
        (created,) = [span for span in collector.spans if span.name.endswith("/sandboxes")]
        assert created.name.startswith("POST ")
        assert created.trace_id.hex() == trace
        assert created.parent_span_id.hex() == f"{9:016x}"
        assert collector.children(created) == ["start sandbox"]
        (began,) = collector.named("POST /process.Process/Start")
        assert collector.children(began) == ["command"]
        assert SECRET not in str(collector.spans)
