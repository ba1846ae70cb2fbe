"""Fleets whose workers or sandboxes are broken."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fleets.surfaces import QUICK, Fleet
from tests.harness.servers import free_port, until
from tests.penstock.commands import clean
from tests.worker.concurrent import chores
from tests.worker.concurrent.crew import open_queue
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, CodeRequest

CHORES = ("--allow", "tests.worker.concurrent.chores.*")
# A worker as it would be if its interpreter said something else of the machine.
OTHERWISE = (
    "{change}; import sys; sys.argv[0] = 'penstock'; from penstock.entry import main; main()"
)
AHEAD = "import time; now = time.time; time.time = lambda: now() + 30"
OLD = (
    "from importlib import metadata; known = metadata.version; "
    "metadata.version = lambda name: '0.1.0' if name == 'penstock-rl' else known(name)"
)


def worker_otherwise(fleet: Fleet, change: str, fusion: ScriptedFusion) -> "subprocess.Popen[Any]":
    before = fleet.beating()
    environment = clean() | QUICK | {
        "PENSTOCK_REDIS_URL": fleet.url, "PENSTOCK_SANDBOX_FUSION_URL": fusion.url,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", OTHERWISE.format(change=change), "worker", "code"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    fleet.processes.append(process)
    until(lambda: fleet.beating() > before, "its heartbeat")
    return process


def finished(fleet: Fleet, count: int) -> None:
    counter = "penstock:work:{code}"
    until(lambda: int(fleet.client.hget(counter, "finished") or 0) >= count, "so many ends")


def test_mixed_gates(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        gated = ("code", "--gate", "code", "--gate-limit", "4")
        fleet.worker(*gated, PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        free = fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        name = "mixed gates"
        said = "workers of queue 'code' differ"
        fleet.names(name, "gates_mixed", said, "start all with --gate code")
        free.terminate()
        free.wait()
        fleet.worker(*gated, PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_clock_that_is_ahead(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        wrong = worker_otherwise(fleet, AHEAD, fusion)
        name = "a worker's clock 30 s ahead"
        fleet.names(name, "clock", "s ahead of that of Redis", "run NTP")
        wrong.terminate()
        wrong.wait()
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_worker_of_an_old_release(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        old = worker_otherwise(fleet, OLD, fusion)
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        name = "a worker of an old release"
        fleet.names(name, "releases_mixed", "1 of 0.1.0", "restart the older ones")
        old.terminate()
        old.wait()
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_killed_worker(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        killed = fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        killed.kill()
        killed.wait()
        name = "a killed worker"
        fleet.names(name, "worker_silent", "1 worker is silent", "start it again")
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_frozen_worker(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        frozen = fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        frozen.send_signal(signal.SIGSTOP)
        name = "a frozen worker"
        fleet.names(name, "worker_silent", "1 worker is silent", "start it again")
        frozen.send_signal(signal.SIGCONT)
        fleet.is_well(name)


def test_one_slow_machine(fleet: Fleet) -> None:
    with (
        ScriptedFusion() as quick,
        ScriptedFusion(default=Answer.ok(seconds=1.0)) as slow,
    ):
        slow_one = fleet.worker("code", "--concurrency", "2", PENSTOCK_SANDBOX_FUSION_URL=slow.url)
        fleet.submit(8)
        finished(fleet, 8)
        fleet.worker("code", "--concurrency", "2", PENSTOCK_SANDBOX_FUSION_URL=quick.url)
        fleet.submit(40)
        name = "one slow machine"
        fleet.names(name, "worker_slow", "s per job, and the others", "look at its machine")
        slow_one.terminate()
        slow_one.wait()
        fleet.is_well(name)


def test_a_job_that_kills_its_workers(fleet: Fleet) -> None:
    with ScriptedFusion() as fusion:
        given = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url, "PENSTOCK_JOB_DEATHS": "0"}
        first = fleet.worker("code", *CHORES, **given)
        job = open_queue(fleet.client).enqueue(chores.blocks, fleet.url, "poison")
        until(lambda: fleet.client.hexists("ran", "poison"), "the job runs")
        first.kill()  # as the system does for a job that takes all the memory
        first.wait()
        fleet.worker("code", *CHORES, **given)
        name = "a job that kills its workers"
        fleet.names(name, "job_kills_workers", f"job {job.id} was given up", "look at its program")
        job.delete()
        fleet.is_well(name)


def test_retries_exhausted(fleet: Fleet) -> None:
    from rq import Retry

    with ScriptedFusion() as fusion:
        given = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url}
        fleet.worker("code", "--with-scheduler", *CHORES, **given)
        job = open_queue(fleet.client).enqueue(chores.fail, "no key: score", retry=Retry(2))
        name = "a job whose retries are exhausted"
        fleet.names(name, "jobs_failed", "1 job failed in the last 15 minutes", "open the latest")
        assert "no key: score" in fleet.problems[0]["text"]
        job.delete()
        fleet.is_well(name)


def test_a_dead_sandbox(fleet: Fleet) -> None:
    port = free_port()
    sandbox = fleet.sandbox(port)
    given = {"PENSTOCK_SANDBOX_FUSION_URL": f"http://127.0.0.1:{port}"}
    fleet.worker("code", **given)
    fleet.submit()
    finished(fleet, 1)
    sandbox.kill()
    sandbox.wait()
    fleet.submit(19)
    finished(fleet, 20)
    name = "a dead sandbox"
    fleet.names(name, "masked", "19 of the last 20 programs had no outcome", "start that sandbox")
    fleet.sandbox(port)
    is_back(fleet, name)


def is_back(fleet: Fleet, name: str) -> None:
    """Programs have an outcome again, enough of them to believe it."""

    def well() -> bool:
        fleet.submit(16)
        fleet.verdicts()
        return "masked" not in fleet.verdicts()

    until(well, f"no masked programs after {name}")
    fleet.is_well(name)


def test_all_programs_masked(fleet: Fleet) -> None:
    with ScriptedFusion(default=Answer(status=500)) as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit(20)
        finished(fleet, 20)
        name = "all programs masked"
        said = "20 of the last 20 programs had no outcome"
        fleet.names(name, "masked", said, "look at the sandbox's log")
        fusion.default = Answer.ok()
        is_back(fleet, name)


def test_half_of_the_programs_masked(fleet: Fleet) -> None:
    with ScriptedFusion() as well, ScriptedFusion(default=Answer(status=500)) as broken:
        fleet.worker("code", "--concurrency", "1", PENSTOCK_SANDBOX_FUSION_URL=well.url)
        fleet.submit(10)
        finished(fleet, 10)
        half = fleet.worker("code", "--concurrency", "1", PENSTOCK_SANDBOX_FUSION_URL=broken.url)
        name = "half of the programs masked"
        until(lambda: fleet.submit(4) or broken.requests > 10, "both work")
        fleet.names(name, "masked", "programs had no outcome", "look at the sandbox's log")
        half.terminate()
        half.wait()
        is_back(fleet, name)


def test_a_wrong_token_of_the_sandbox(fleet: Fleet) -> None:
    port = free_port()
    fleet.sandbox(port, PENSTOCK_SANDBOX_TOKEN="right")
    given = {"PENSTOCK_SANDBOX_FUSION_URL": f"http://127.0.0.1:{port}"}
    wrong = fleet.worker("code", PENSTOCK_SANDBOX_TOKEN="wrong", **given)
    fleet.submit(5)
    finished(fleet, 5)
    name = "a wrong token of the sandbox"
    fleet.names(name, "masked", "5 of the last 5 programs", "PENSTOCK_SANDBOX_TOKEN")
    wrong.terminate()
    wrong.wait()
    fleet.worker("code", PENSTOCK_SANDBOX_TOKEN="right", **given)
    is_back(fleet, name)


def test_a_sandbox_that_is_full(fleet: Fleet) -> None:
    with ScriptedFusion(default=Answer.busy()) as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit(5)
        finished(fleet, 5)
        name = "a sandbox without room"
        fleet.names(name, "masked", "5 of the last 5 programs", "lower the gate's limit")
        fusion.default = Answer.ok()
        is_back(fleet, name)


def test_a_sandbox_that_jobs_wait_for(fleet: Fleet) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    given = {"PENSTOCK_SANDBOX_FUSION_URL": url, "PENSTOCK_SANDBOX_ATTEMPTS": "50"}
    worker = fleet.worker("code", **given)
    fleet.submit()
    name = "a sandbox that nobody reaches"
    said = f"1 worker cannot reach the sandbox {url}"
    fleet.names(name, "sandbox_unreachable", said, "start that sandbox")
    port = url.rpartition(":")[2]
    with ScriptedFusion(port=int(port)):
        fleet.is_well(name)
    worker.kill()


def test_a_command_that_redis_forbids(fleet: Fleet) -> None:
    fleet.client.execute_command(
        "ACL", "SETUSER", "fleet", "on", ">s3cret", "~*", "&*", "+@all", "-ltrim"
    )
    try:
        url = fleet.url.replace("redis://", "redis://fleet:s3cret@")
        with ScriptedFusion() as fusion:
            given = {"PENSTOCK_SANDBOX_FUSION_URL": fusion.url, "PENSTOCK_REDIS_URL": url}
            fleet.worker("code", **given)
            fleet.submit()
            name = "a command that Redis forbids"
            said = "Redis refuses 1 worker: "
            fleet.names(name, "worker_refused", said, "docs/guide/redis.md")
            fleet.client.execute_command("ACL", "SETUSER", "fleet", "+ltrim")
            fleet.is_well(name)
    finally:
        fleet.client.execute_command("ACL", "DELUSER", "fleet")


def test_a_frozen_sandbox(fleet: Fleet) -> None:
    port = free_port()
    sandbox = fleet.sandbox(port)
    url = f"http://127.0.0.1:{port}"
    given = {"PENSTOCK_SANDBOX_ATTEMPTS": "50", "PENSTOCK_SANDBOX_MARGIN": "1"}
    fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=url, **given)
    sandbox.send_signal(signal.SIGSTOP)
    quick = CodeRequest(code="print(1)", run_timeout=1, compile_timeout=1)
    CodeQueue(fleet.url, "code", abandon="keep").sync.submit(quick)
    name = "a frozen sandbox"
    said = f"1 worker cannot reach the sandbox {url}"
    fleet.names(name, "sandbox_unreachable", said, "start that sandbox")
    sandbox.send_signal(signal.SIGCONT)
    fleet.is_well(name)


def test_all_programs_out_of_time(fleet: Fleet) -> None:
    with ScriptedFusion(default=Answer.late()) as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.submit(20)
        finished(fleet, 20)
        name = "all programs out of time"
        said = "20 of the 20 programs of the last minute ran out of time"
        fleet.names(name, "out_of_time", said, "raise its limit")
        fusion.default = Answer.ok()
        fleet.submit(20)
        fleet.is_well(name)


def test_a_url_of_another_service(fleet: Fleet) -> None:
    wrong = fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fleet.page)
    fleet.submit(5)
    finished(fleet, 5)
    name = "a sandbox URL that names another service"
    fleet.names(name, "masked", "answered HTTP 404", "correct PENSTOCK_SANDBOX_FUSION_URL")
    wrong.terminate()
    wrong.wait()
    with ScriptedFusion() as fusion:
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        is_back(fleet, name)


PIDS = Path("/sys/fs/cgroup/pids")


@pytest.mark.skipif(not os.access(PIDS, os.W_OK), reason="no cgroup of pids that we may write")
def test_a_sandbox_host_out_of_pids(fleet: Fleet) -> None:
    port = free_port()
    sandbox = fleet.sandbox(port)
    fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=f"http://127.0.0.1:{port}")
    fleet.submit()
    finished(fleet, 1)
    group = PIDS / f"penstock-test-{sandbox.pid}"
    group.mkdir()
    try:
        enclose(group, sandbox.pid)
        (group / "pids.max").write_text("1")
        fleet.submit(10)
        finished(fleet, 11)
        name = "a sandbox host out of pids"
        fleet.names(name, "masked", "Resource temporarily unavailable", "more processes")
        (group / "pids.max").write_text("max")
        is_back(fleet, name)
    finally:
        sandbox.terminate()
        sandbox.wait(100)
        until(lambda: not (group / "cgroup.procs").read_text(), "an empty group")
        group.rmdir()


def enclose(group: Path, pid: int) -> None:
    """Move a process to a group, then its children: what it starts meanwhile is born there."""
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has ended
        (group / "cgroup.procs").write_text(str(pid))
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                enclose(group, int(child))
