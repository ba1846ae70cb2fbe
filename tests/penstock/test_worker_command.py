"""`penstock worker` works like RQ's own, with our options."""

import os
import shlex
import signal
import subprocess
import sys

import httpx
import pytest

import ground
from limiter import existing_gate
from penstock.commands.worker import command
from tests.harness import leash, patient
from tests.harness.servers import PrivateRedis, free_port, until, url_of
from tests.penstock.commands import CHORES, HERE, penstock_worker, run
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import open_queue
from worker.errors import start_a_worker


def test_a_burst_runs_what_is_queued_under_the_gate(real_redis) -> None:
    jobs = [open_queue(real_redis).enqueue(chores.add, 1, n) for n in range(5)]
    worker = penstock_worker(real_redis, *CHORES, "--burst", "--gate", "code", "--gate-limit", "2")
    assert worker.wait(100) == 0
    assert [job.return_value() for job in jobs] == [1, 2, 3, 4, 5]
    assert existing_gate(real_redis, "code").sync.status().limit == 2
    worker.communicate()


def test_what_its_options_say_is_said_to_all_that_read_the_environment(real_redis) -> None:
    names = ("PENSTOCK_RUN", "PENSTOCK_REDIS_URL")
    jobs = [open_queue(real_redis).enqueue(chores.setting, name) for name in names]
    worker = penstock_worker(real_redis, *CHORES, "--burst", "--run", "ninth", PENSTOCK_RUN="first")
    worker.communicate(timeout=100)
    assert [job.return_value() for job in jobs] == ["ninth", url_of(real_redis)]


def test_a_url_in_a_file_is_that_of_its_jobs_and_stays_out_of_the_environment(
    real_redis, tmp_path
) -> None:
    (tmp_path / "url").write_text(url_of(real_redis))
    queue = open_queue(real_redis)
    reads = queue.enqueue("ground.settings.redis_url")
    environment = queue.enqueue(chores.setting, "PENSTOCK_REDIS_URL")
    allowed = ("--allow", "ground.settings.redis_url")
    run("worker", *CHORES, *allowed, "--burst", PENSTOCK_REDIS_URL_FILE=str(tmp_path / "url"))
    assert (reads.return_value(), environment.return_value()) == (url_of(real_redis), "")


def test_it_logs_which_redis_it_uses_without_the_password(real_redis) -> None:
    url = url_of(real_redis)
    named = url.replace("redis://", "redis://default:s3cret@")
    command = [sys.executable, "-m", "penstock", "--redis-url", named, "worker", *HERE, "--burst"]
    with leash.start(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as worker:
        said, _ = worker.communicate(timeout=60)
    assert f"Redis at {url}" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--sandbox", "local", "--concurrency", "8", "--gate", "code", "--gate-limit", "64"],
         "8 jobs at once, sandbox local (level ns), gate code (limit 64)"),
        (["--sandbox", "fusion"], "256 jobs at once, sandbox fusion (2 servers), no gate"),
    ],
)  # fmt: skip
def test_its_log_says_what_it_is(real_redis, options, line) -> None:
    servers = "http://127.0.0.1:9 http://127.0.0.1:10"
    where = ("--redis-url", url_of(real_redis))
    ended = run("worker", *where, *options, "--burst", PENSTOCK_SANDBOX_FUSION_URL=servers)
    assert ended.returncode == 0
    assert line in ended.stderr


def test_it_takes_the_queues_in_order_and_ends_warmly_with_ctrl_c(real_redis) -> None:
    urgent = open_queue(real_redis, "urgent")
    first = urgent.enqueue(chores.waits_for, url_of(real_redis), "go")
    with penstock_worker(real_redis, *CHORES, "urgent", "code", "--name", "w1") as worker:
        until(lambda: first.get_status() == "started", "the job")
        worker.send_signal(signal.SIGINT)
        until(lambda: real_redis.hexists("rq:worker:w1", "shutdown_requested_date"), "its word")
        real_redis.rpush("go", 1)
        assert worker.wait(100) == 0
        worker.communicate()
    assert first.get_status() == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_not_ctrl_c_ends_it_warmly_too_and_is_in_its_exit_code(
    real_redis, number: signal.Signals
) -> None:
    job = open_queue(real_redis).enqueue(chores.waits_for, url_of(real_redis), "go")
    with penstock_worker(real_redis, *CHORES, "--name", "w1") as worker:
        until(lambda: job.get_status() == "started", "the job")
        worker.send_signal(number)
        until(lambda: real_redis.hexists("rq:worker:w1", "shutdown_requested_date"), "its word")
        real_redis.rpush("go", 1)
        assert worker.wait(100) == 128 + number
        worker.communicate()
    assert job.get_status() == "finished"


def test_under_nohup_the_end_of_the_terminal_does_not_end_it(real_redis) -> None:
    job = open_queue(real_redis).enqueue(chores.waits_for, url_of(real_redis), "go")
    command = ["nohup", sys.executable, "-m", "penstock", "--redis-url", url_of(real_redis),
               "worker", *CHORES, "--max-jobs", "1"]  # fmt: skip
    with leash.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as worker:
        until(lambda: job.get_status() == "started", "the job")
        worker.send_signal(signal.SIGHUP)
        real_redis.rpush("go", 1)
        assert worker.wait(100) == 0
        worker.communicate()
    assert job.get_status() == "finished"


@pytest.mark.parametrize("queue", ["urgent code", "urgent,code", "", "code\n", "a\x1b[2J"])
def test_two_names_in_one_word_are_no_queue(real_redis, queue: str) -> None:
    worker = penstock_worker(real_redis, queue)
    _, said = worker.communicate(timeout=100)
    assert worker.returncode == 2
    assert b"is not a queue's name; separate names by spaces: penstock worker urgent code" in said
    assert b"\x1b" not in said


@pytest.mark.parametrize(
    "environment", [{}, {"PENSTOCK_ALLOW": "tests.worker.concurrent.chores.fail"}]
)
def test_it_runs_what_it_was_told_to_and_nothing_else(real_redis, environment) -> None:
    queue = open_queue(real_redis)
    own = queue.enqueue(chores.fail, "it was run")
    other = queue.enqueue("os.getpid")
    worker = penstock_worker(real_redis, *HERE, "--burst", **environment)
    _, said = worker.communicate(timeout=100)
    assert worker.returncode == 0
    assert b"can run anything here" not in said
    refused, run = "the function 'os.getpid' is not allowed on this worker", "it was run"
    assert refused in other.latest_result().exc_string
    why = own.latest_result().exc_string
    assert (run if environment else "penstock worker --allow NAME") in why


def test_a_worker_that_cannot_run_programs_leaves_them_in_their_queue(real_redis) -> None:
    """It says what it needs, and the command of the advice does run them."""
    queue = "it's_$mine"
    job = open_queue(real_redis, queue).enqueue("worker.jobs.run_code", {"code": "print(42)"})
    worker = penstock_worker(real_redis, "--burst", queue)
    _, said = worker.communicate(timeout=100)
    assert worker.returncode == 2
    assert b"PENSTOCK_SANDBOX_FUSION_URL: is not set" in said
    assert b"penstock worker --sandbox local" in said
    assert job.get_status() == "queued"
    advice = start_a_worker(queue).partition(", or with")[0]
    words = shlex.split(advice)
    assert words[:2] == ["penstock", "worker"]
    worker = penstock_worker(real_redis, *words[2:], "--burst")
    _, said = worker.communicate(timeout=100)
    assert job.return_value()["run_result"]["stdout"] == "42\n", said.decode()


def test_nor_does_it_start_where_the_embedded_sandbox_cannot(real_redis) -> None:
    job = open_queue(real_redis).enqueue("worker.jobs.run_code", {"code": "print(42)"})
    worker = penstock_worker(
        real_redis, *HERE, "--burst", "--name", "unfit", PENSTOCK_SANDBOX_PYTHON="/bin/true"
    )
    _, said = worker.communicate(timeout=100)
    assert worker.returncode not in (0, None)
    assert b"sandbox level 'ns' is unavailable: /bin/true cannot be run" in said
    assert b"Traceback" not in said
    assert job.get_status() == "queued"
    assert real_redis.smembers("rq:workers") == set(), "it took its leave"


@pytest.mark.parametrize("name", ["code", "it's; rm -rf $HOME", "--burst", "a b"])
def test_a_queues_name_is_quoted_in_the_advice_for_a_shell(name) -> None:
    words = shlex.split(start_a_worker(name, name.strip("-")).partition(", or with")[0])
    context = command.make_context("worker", words[2:])
    assert context.params["queues"] == (name,)
    assert context.params["gate"] == name.strip("-")
    assert context.params["burst"] is False


def test_a_wrong_option_is_refused_in_one_sentence(real_redis) -> None:
    worker = penstock_worker(real_redis, "--concurrency", "0")
    _, said = worker.communicate(timeout=100)
    assert worker.returncode == 2
    assert b"--concurrency (PENSTOCK_CONCURRENCY): must be greater than or equal to 1" in said


def test_a_name_that_a_killed_worker_had_is_refused_with_how_long(real_redis) -> None:
    real_redis.hset("rq:worker:one", mapping={"birth": "2026-08-02T10:11:12.345678Z"})
    real_redis.expire("rq:worker:one", 400)
    worker = penstock_worker(real_redis, *HERE, "--name", "one", "--burst")
    _, said = worker.communicate(timeout=100)
    assert worker.returncode == 2
    assert b"--name: a worker named 'one' lives, or was killed: RQ counts a killed one" in said
    assert b"Traceback" not in said


def test_a_worker_tells_its_own_health_and_figures_to_those_with_the_token(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    port = free_port()
    env = {"PENSTOCK_REDIS_URL": shared_server.url, "PENSTOCK_METRICS_TOKEN": "secret"}
    process = leash.start(
        [sys.executable, "-m", "penstock", "worker", *HERE, "--metrics-port", str(port)],
        env=os.environ | env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"

    def idle() -> bool:
        try:
            answer = httpx.get(f"{url}/healthz", timeout=5)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["state"] in ("started", "idle")

    until(idle, "the worker", within=100)
    assert patient.get(f"{url}/metrics").status_code == 401
    known = {"Authorization": "Bearer secret"}
    page = patient.get(f"{url}/metrics", headers=known).text
    assert "penstock_worker_running{" in page
    assert "process_resident_memory_bytes" in page
    assert patient.get(f"{url}/else", headers=known).status_code == 404
    process.terminate()
    assert process.wait(100) == 128 + signal.SIGTERM
