"""Where traces meet: a batch's groups link to the items that were written elsewhere."""

from ground import tracing
from tests.buffer.conftest import item
from tests.buffer.serving import ServerProcess
from tests.harness import patient
from tests.harness.servers import url_of
from tests.harness.traces import Collector, recorded

REWARDS = {"a": 0, "b": 1}  # a group of equal ones is of no use


async def test_each_group_of_a_batch_links_to_the_writes_of_its_items(make) -> None:
    buffer = make(group_size=2).buffer
    with recorded() as spans:
        for instance in ("one", "two"):
            written = item(instance, "")
            for written["uid"], written["reward"] in REWARDS.items():  # the same dict
                with tracing.span("rollout"):
                    await buffer.write(written)
        batch = await buffer.take(2)
        await buffer.ack(batch)
        writes = {span.context.span_id for span in spans.named("write math")}
        assert len({span.context.trace_id for span in spans.named("write math")}) == 4
        take, groups = spans.one("take math"), spans.named("group")
        linked = [{link.context.span_id for link in group.links} for group in groups]
        assert [len(ids) for ids in linked] == [2, 2]
        assert linked[0] | linked[1] == writes
        assert {group.parent.span_id for group in groups} == {take.context.span_id}
        assert spans.one("ack math").attributes["penstock.receipt"] == batch.receipt


async def test_an_item_has_no_traceparent_unless_its_writer_traces(make) -> None:
    buffer = make(group_size=2).buffer
    await buffer.write_many([item("one", *each) for each in REWARDS.items()])
    batch = await buffer.take(1)
    assert not any("traceparent" in each for each in batch.items)


def test_a_server_goes_on_with_its_clients_trace_and_sends_its_figures(
    real_redis, tmp_path
) -> None:
    parents = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]
    asked = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_METRIC_EXPORT_INTERVAL": "200"}
    with Collector().listening() as collector:
        asked["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with ServerProcess(url_of(real_redis), tmp_path, **asked) as server:
            for number, parent in enumerate(parents):
                answer = patient.post(
                    f"{server.url}/buffer/write",
                    json=item("one", str(number), 1.0),
                    headers={"traceparent": parent},
                )
                assert answer.is_success
            collector.until(lambda: len(collector.named("POST")) == 2)
            traces = [span.trace_id.hex() for span in collector.named("POST")]
            assert traces == [f"{number:032x}" for number in (1, 2)]
            collector.until(lambda: "penstock_buffer_groups" in collector.metrics)
            assert collector.named("GET") == [], "nobody traces /healthz"
        assert collector.services == {"penstock-buffer"}
