"""The plugin that users' own tests stand on, in pytest runs of their own."""

import pytest

pytest_plugins = ("pytester",)

# Plugins that the developers of Penstock have, and their users may not.
STRICT = (
    "-W", "error",
    "-p", "no:asyncio", "-p", "no:hypothesispytest", "-p", "no:schemathesis", "-p", "no:anyio",
)  # fmt: skip

JOBS = """
    from rq import Queue
    from rq.serializers import JSONSerializer

    def double(n):
        return 2 * n

    def fail():
        raise ValueError("no such answer")

    def enqueue_two(redis):
        queue = Queue("code", connection=redis, serializer=JSONSerializer)
        return queue.enqueue(double, 21), queue.enqueue(fail)
"""


def test_a_users_job_runs_on_the_fake_redis_under_warnings_as_errors(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        jobs=JOBS,
        test_user="""
            from jobs import enqueue_two

            def test_jobs(penstock_redis, penstock_worker):
                good, bad = enqueue_two(penstock_redis)
                assert penstock_worker() == [good, bad]
                assert good.return_value() == 42
                assert "no such answer" in bad.latest_result().exc_string
                assert penstock_worker() == []

            def test_the_next_test_finds_nothing(penstock_redis):
                assert penstock_redis.keys() == []
        """,
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=2)


def test_only_the_named_queue_is_worked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        jobs=JOBS,
        test_user="""
            from jobs import enqueue_two

            def test_jobs(penstock_redis, penstock_worker):
                good, bad = enqueue_two(penstock_redis)
                assert penstock_worker("other") == []
                assert good.get_status() == "queued"
                assert len(penstock_worker("code")) == 2
        """,
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)


def test_jobs_that_jobs_enqueue_run_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        chain="""
            from rq import Queue
            from rq.job import get_current_job
            from rq.serializers import JSONSerializer

            def chain(left):
                if left:
                    client = get_current_job().connection
                    Queue(f"q{left}", connection=client, serializer=JSONSerializer).enqueue(
                        chain, left - 1
                    )
        """,
        test_user="""
            from rq import Queue
            from rq.serializers import JSONSerializer
            from chain import chain

            def test_jobs(penstock_redis, penstock_worker):
                Queue(connection=penstock_redis, serializer=JSONSerializer).enqueue(chain, 3)
                assert len(penstock_worker()) == 4
        """,
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)


def test_the_process_keeps_its_signals_alarm_and_threads(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        jobs=JOBS,
        test_user="""
            import signal, threading
            from jobs import enqueue_two

            def test_jobs(penstock_redis, penstock_worker):
                kept = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
                signal.alarm(1000)
                enqueue_two(penstock_redis)
                penstock_worker()
                assert signal.alarm(0) > 900
                assert kept == {n: signal.getsignal(n) for n in kept}
                assert threading.active_count() == 1
        """,
    )
    pytester.runpytest_subprocess(*STRICT, "-p", "no:timeout").assert_outcomes(passed=1)


def test_a_run_that_does_not_use_it_loads_nothing_of_weight(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
            import sys

            def test_modules():
                assert "penstock.pytest_plugin" in sys.modules
                heavy = {"fakeredis", "redis", "rq", "pydantic", "click", "rich", "ground"}
                assert heavy & set(sys.modules) == set()
        """
    )
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)
