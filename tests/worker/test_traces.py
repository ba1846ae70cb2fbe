"""One trace from a trainer's call to the record of the result, whole if a worker is killed."""

import os
from types import SimpleNamespace
from typing import Any

from ground import tracing
from tests.harness import commands, killing
from tests.harness.servers import until, url_of
from tests.harness.traces import Collector, recorded
from tests.worker.concurrent.crew import HEIR, LEASE, at_work, work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, CodeRequest
from worker.concurrent import traced
from worker.concurrent.running import ClaimedJob, Outcome


class Vague:
    """A value whose truth cannot be asked, as that of an array."""

    def __bool__(self) -> bool:
        raise ValueError("the truth of it is ambiguous")


def test_a_span_has_of_a_functions_value_what_it_can_show() -> None:
    shown: dict[str, Any] = {}
    span: Any = SimpleNamespace(set=shown.__setitem__)
    claimed = ClaimedJob("code", "it", "1", {}, 0.0, lambda _: None, span=span)
    traced.ending(Outcome(claimed, value={"attempts": Vague(), "error_kind": "none"}))
    assert shown == {"penstock.error_kind": "none"}


LOCAL: dict[str, Any] = {"sandbox": "local", "sandbox_attempts": 1}
SECRET = "s3cret"


def test_a_killed_workers_attempt_and_the_next_are_two_spans_of_one_job(real_redis) -> None:
    url = url_of(real_redis)
    queue = CodeQueue(url).sync
    at = killing.before("jail.sandbox:LocalSandbox.run", hit=2)  # after the proof
    doomed = LOCAL | {"job_lease": LEASE}
    with recorded() as spans:
        with tracing.span("trainer"):
            handle = queue.submit(CodeRequest(code=f"print('{SECRET}')"))
        with killing.Child(work_in_process, url, ["code"], doomed, at=at) as child:
            assert child.outcome().killed
        with at_work(real_redis, **LOCAL, **HEIR):
            assert handle.result().stdout == f"{SECRET}\n"
        until(lambda: spans.named("job code"), "the job's span to end")
        root = spans.one("trainer")
        assert spans.tree(root) == {
            "job code": "trainer",
            "send code": "job code",
            "wait code": "job code",
            "process code": "job code",
            "permit": "process code",
            "run python": "process code",
            "jail": "run python",
            "program": "run python",
            "record code": "process code",
        }
        killed, done = spans.named("process code")
        first, second = (dict(each.attributes or {}) for each in (killed, done))
        assert (first["error.type"], first["penstock.attempt"]) == ("WorkerDied", 1)
        assert second["penstock.attempt"] == 2
        assert second["penstock.error_kind"] == "none"
        assert first["penstock.worker"] != second["penstock.worker"]
        assert killed.end_time <= done.start_time
        assert SECRET not in "".join(each.to_json() for each in spans.all())


def test_a_collector_gets_a_whole_trace_though_a_worker_is_killed(real_redis, tmp_path) -> None:
    """What the dead had sent hangs on the span that another worker ends for it."""
    collector = Collector()
    answers = (Answer.ok("late\n", seconds=60), Answer.ok("ok\n"))
    with collector.listening(), ScriptedFusion(*answers) as fusion, recorded() as spans:
        environment = os.environ | {
            "PENSTOCK_REDIS_URL": url_of(real_redis),
            "PENSTOCK_SANDBOX_FUSION_URL": fusion.url,
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
        }
        with tracing.span("trainer"):
            handle = CodeQueue(url_of(real_redis)).sync.submit("print()")
        with commands.start(["worker"], env=environment | {"PENSTOCK_JOB_LEASE": "3"}) as doomed:
            try:
                fusion.wait_until(lambda: fusion.in_flight == 1)
                collector.until(lambda: collector.named("permit"))
            finally:
                doomed.kill()
        with commands.start(["worker"], env=environment | {"PENSTOCK_JOB_LEASE": "9"}) as heir:
            try:
                assert handle.result().stdout == "ok\n"
            finally:
                heir.terminate()
        assert collector.services == {"penstock-worker"}
        collector.until(lambda: len(collector.named("process code")) == 2)
        ours = {span.context.span_id.to_bytes(8) for span in spans.all()}
        theirs = [span for span in collector.spans if span.name != "start worker"]
        assert len({span.span_id for span in theirs}) == len(theirs)
        assert {span.parent_span_id for span in theirs} <= ours | {s.span_id for s in theirs}
        killed, done = collector.named("process code")
        assert [len(collector.children(each)) for each in (killed, done)] == [1, 3]
        assert fusion.headers[-1]["traceparent"].split("-")[1] == done.trace_id.hex()
