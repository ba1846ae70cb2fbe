"""Whoever can write to Redis names functions, and a worker runs those that it was told to."""

import sys
from typing import Any

import pytest
from rq import Callback, Queue
from rq.job import Job
from rq.registry import StartedJobRegistry
from rq.serializers import JSONSerializer, PickleSerializer
from rq.utils import now

from ground import SettingError
from tests.harness.servers import url_of
from tests.worker.concurrent import chores, stock
from tests.worker.concurrent.crew import burst, new_worker, nothing_left, open_queue
from tests.worker.concurrent.webhooks import WEBHOOK, both, listener
from worker import AllowedJob, WorkerSettings
from worker.allowed import Allowed
from worker.errors import NotAllowed

PICKLE_IN_ASCII = "cos\ngetpid\n(tR."
REFUSED = {
    "a function of another module": ("os.getpid", []),
    "a builtin": ("builtins.eval", ["1 + 1"]),
    "a builtin without its module": ("eval", ["1 + 1"]),
    "a module of that name's beginning": ("worker.jobs_of_mine.run", []),
    "a class that the module imported": ("worker.jobs.CodeRequest", []),
    "a method of such a class": ("worker.jobs.CodeRequest.parse_raw", [PICKLE_IN_ASCII]),
    "a function that the module imported": ("worker.jobs.cache", []),
    "a private function": ("worker.jobs._never_again", []),
    "what a function carries along": ("worker.jobs.run_code.__globals__.clear", []),
    "a callback as a function": ("worker.notices.on_stopped", [None, None]),
    "no name": ("", []),
}


def enqueue(queue: Queue, name: str, *args: Any, **options: Any) -> Job:
    """As somebody does who writes to Redis by hand."""
    job = queue.enqueue(chores.add, 1, 2, **options)
    data = JSONSerializer.dumps([name, None, list(args), {}])
    queue.connection.hset(job.key, "data", data)
    return job


def why(job: Job) -> str:
    assert job.get_status(refresh=True) == "failed"
    return str(job.latest_result().exc_string)  # type: ignore[union-attr]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_allowed_is_refused_with_the_settings_name(redis, case) -> None:
    queue = open_queue(redis)
    name, args = REFUSED[case]
    bad, good = (
        enqueue(queue, name, *args),
        enqueue(queue, "tests.worker.concurrent.chores.add", 1, 3),
    )
    burst(redis, allow="tests.worker.concurrent.chores.add")
    assert f"the function {name!r} is not allowed on this worker" in why(bad)
    assert "PENSTOCK_ALLOW" in why(bad)
    assert good.return_value() == 4
    assert nothing_left(redis) == {}


def test_a_method_of_what_a_job_brings_along_is_refused(redis) -> None:
    queue = open_queue(redis)
    job = queue.enqueue(chores.add, 1, 2)
    redis.hset(job.key, "data", JSONSerializer.dumps(["format", "{0}", [1], {}]))
    burst(redis, allow="")
    assert "the method 'format' is not allowed" in why(job)


def test_a_refused_name_is_not_even_imported(redis) -> None:
    job = enqueue(open_queue(redis), "this.s")
    assert "this" not in sys.modules
    burst(redis, allow="")
    assert "not allowed" in why(job)
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    "allow",
    [
        "tests.worker.concurrent.chores.add",
        "tests.worker.concurrent.chores.*",
        "nothing.at_all, tests.worker.concurrent.chores.*",
        "*",
    ],
)
def test_what_the_setting_names_is_run(redis, allow) -> None:
    job = enqueue(open_queue(redis), "tests.worker.concurrent.chores.add", 1, 2)
    burst(redis, allow=allow)
    assert job.return_value() == 3


@pytest.mark.parametrize("name", ["asyncio.run", "OwnJob", "_meetings.clear", "sub.add"])
def test_a_star_stands_for_the_functions_that_the_module_defines(name) -> None:
    allow = Allowed("tests.worker.concurrent.chores.*")
    assert allow.function("tests.worker.concurrent.chores.add") is chores.add
    with pytest.raises(NotAllowed):
        allow.function(f"tests.worker.concurrent.chores.{name}")


@pytest.mark.parametrize("words", ["add", "a..b", "*.add", "a.*.b", "https://host*", "a b!", "/x"])
def test_a_setting_that_could_name_nothing_is_refused(words) -> None:
    with pytest.raises(SettingError, match=r"PENSTOCK_ALLOW: '.*' is none of module.function"):
        WorkerSettings.load(allow=words)


# Callbacks and webhooks


@pytest.mark.parametrize("kind", ["on_success", "on_failure", "on_stopped"])
def test_a_job_with_a_callback_that_is_not_allowed_is_not_run(redis, kind) -> None:
    queue = open_queue(redis)
    callback = Callback("tests.worker.concurrent.chores.on_success")
    job = queue.enqueue(chores.told, "redis://nowhere", "it", **{kind: callback})
    burst(redis, allow="tests.worker.concurrent.chores.told")
    assert "the callback 'tests.worker.concurrent.chores.on_success' is not allowed" in why(job)
    assert redis.lrange("called back", 0, -1) == []
    assert nothing_left(redis) == {}


def test_callbacks_that_the_setting_names_are_called(redis) -> None:
    queue = open_queue(redis)
    good = queue.enqueue(chores.add, 1, 2, on_success=Callback(chores.on_success))
    bad = queue.enqueue(chores.fail, "it", on_failure=Callback(chores.on_failure))
    burst(redis, allow="tests.worker.concurrent.chores.*")
    assert (good.get_status(), bad.get_status()) == ("finished", "failed")
    said = f"success {good.id} 3", f"failure {bad.id} it"
    assert set(redis.lrange("called back", 0, -1)) == {words.encode() for words in said}


def test_a_refused_job_still_calls_the_callback_that_is_allowed(redis) -> None:
    callback = Callback(chores.on_failure)
    job = enqueue(open_queue(redis), "os.getpid", on_failure=callback)
    burst(redis, allow="tests.worker.concurrent.chores.on_failure")
    assert "the function 'os.getpid' is not allowed" in why(job)
    (said,) = redis.lrange("called back", 0, -1)
    assert said.startswith(f"failure {job.id} the function 'os.getpid'".encode())


def test_the_callbacks_by_which_a_trainer_is_told_are_no_matter_of_the_setting(redis) -> None:
    job = open_queue(redis).enqueue(
        chores.add, 1, 2, on_success=Callback("worker.notices.on_success"),
        on_failure=Callback("worker.notices.on_failure"),
        on_stopped=Callback("worker.notices.on_stopped"),
    )  # fmt: skip
    burst(redis, allow="tests.worker.concurrent.chores.add")
    assert job.return_value() == 3


@pytest.mark.parametrize("climbing", ["..", "../admin", "%2e%2e/admin", "a/..%2Fadmin", ".%2E"])
def test_an_address_that_climbs_is_not_below_what_the_setting_names(climbing: str) -> None:
    allow = Allowed("https://host/hooks/*")
    allow.webhook("https://host/hooks/done..now")
    with pytest.raises(NotAllowed):
        allow.webhook(f"https://host/hooks/{climbing}")


@WEBHOOK
def test_webhooks_are_called_where_the_setting_names_their_address(real_redis) -> None:
    queue = open_queue(real_redis)
    with listener() as (url, heard):
        good = queue.enqueue(chores.add, 1, 2, webhooks=both(f"{url}/hooks/good"))
        bad = queue.enqueue(chores.add, 1, 2, webhooks=both(f"{url}/elsewhere"))
        burst(real_redis, allow=f"tests.worker.concurrent.chores.add {url}/hooks/*")
    assert [path for path, _ in heard] == ["/hooks/good"]
    assert good.get_status() == "finished"
    assert f"the webhook '{url}/elsewhere' is not allowed" in why(bad)


@pytest.mark.parametrize(
    ("allow", "called"), [("", 0), ("tests.worker.concurrent.chores.on_failure", 1)]
)
def test_what_is_not_allowed_is_not_called_for_a_dead_stock_workers_job_either(
    real_redis, allow, called
) -> None:
    """RQ's maintenance calls the failure callback of what a dead worker began."""
    queue = open_queue(real_redis)
    job = queue.enqueue(chores.add, 1, 2, on_failure=Callback(chores.on_failure))
    real_redis.lrem(queue.key, 0, job.id)
    job.set_status("started")
    registry = StartedJobRegistry(queue=queue)
    real_redis.zadd(registry.key, {f"{job.id}:execution": now().timestamp() - 100})
    burst(real_redis, allow=allow)
    assert "AbandonedJobError" in why(job)
    assert real_redis.llen("called back") == called


# Who asks


def test_a_worker_that_rq_starts_runs_anything_and_says_so_once(redis, caplog) -> None:
    jobs = [enqueue(open_queue(redis), "os.getpid") for _ in range(3)]
    burst(redis)
    assert all(job.get_status() == "finished" for job in jobs)
    assert caplog.text.count("PENSTOCK_ALLOW names what it may run") == 1


@pytest.mark.parametrize("allow", ["", "*"])
def test_with_the_setting_it_says_nothing(redis, caplog, allow) -> None:
    burst(redis, allow=allow)
    assert "PENSTOCK_ALLOW" not in caplog.text


def test_a_list_of_names_is_no_help_where_jobs_are_pickle(real_redis) -> None:
    worker = new_worker(real_redis, allow="tests.worker.concurrent.chores.*")
    worker.serializer = PickleSerializer
    with pytest.raises(SettingError, match="PENSTOCK_ALLOW: works only with JSON"):
        worker.work(burst=True, logging_level="WARNING")


@pytest.mark.parametrize("kind", ["fork", "simple", "ours"])
def test_the_job_class_gives_every_worker_the_same_check(kind, real_redis, shared_server) -> None:
    queue = open_queue(real_redis)
    bad = enqueue(queue, "os.getpid")
    uncalled = queue.enqueue(chores.add, 1, 2, on_success=Callback(chores.on_success))
    good = queue.enqueue(
        chores.told, url_of(real_redis), "it", on_success=Callback("worker.notices.on_success")
    )
    process = stock.start(
        kind, shared_server.url, "--burst", "--job-class", "worker.AllowedJob",
        PENSTOCK_ALLOW="tests.worker.concurrent.chores.add tests.worker.concurrent.chores.told",
    )  # fmt: skip
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said.decode()
    assert "the function 'os.getpid' is not allowed" in why(bad)
    assert "the callback 'tests.worker.concurrent.chores.on_success' is not allowed" in why(
        uncalled
    )
    assert good.get_status() == "finished", said.decode()
    assert real_redis.exists("called back") == 0


def test_the_job_class_reads_no_pickle(real_redis) -> None:
    job = Queue("code", connection=real_redis).enqueue(chores.add, 1, 2)
    with pytest.raises(SettingError, match="works only with JSON"):
        AllowedJob.fetch(job.id, connection=real_redis)
    assert AllowedJob.fetch(job.id, connection=real_redis, serializer=JSONSerializer).id == job.id


def test_without_the_setting_a_job_class_of_ours_runs_our_jobs_alone(redis, monkeypatch) -> None:
    job = enqueue(open_queue(redis), "os.getpid")
    worker = new_worker(redis)
    worker.job_class = AllowedJob
    worker.work(burst=True, logging_level="WARNING")
    assert "not allowed" in why(job)


def test_code_jobs_need_no_setting(redis, fusion) -> None:
    job = open_queue(redis).enqueue("worker.jobs.run_code", {"code": "print(42)"}, job_timeout=60)
    burst(redis, allow="")
    assert job.return_value()["run_result"]["stdout"] == "42\n"
