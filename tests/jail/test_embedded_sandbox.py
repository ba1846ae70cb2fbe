"""Jobs in the embedded sandbox: of a worker's own, and one that stock workers' jobs share."""

import asyncio
import concurrent.futures
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ground import SettingError
from jail import LocalSandbox
from jail.errors import SandboxBroken, SandboxFailure, SandboxUnfit, SandboxUnreachable
from jail.isolation import selftest
from jail.judge.models import JudgeCase, JudgeRequest, JudgeResult
from jail.judge.suite import Case, InlineSuite
from jail.launch import ServerConfig
from jail.models import CodeRequest, CodeResult
from jail.sessions import CommandRequest, LocalSessions, SessionRequest, wire
from jail.sessions.launch import hubs
from jail.sessions.settings import SessionSettings
from jail.sessions.shared import SharedSandbox
from jail.sync import SyncSandbox
from tests.harness.remains import processes_in, processes_named
from tests.harness.servers import until, url_of
from tests.jail.sessions.conftest import children_of
from tests.worker.concurrent import stock
from tests.worker.concurrent.crew import at_work, open_queue
from worker.settings import WorkerSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the embedded sandbox is Linux's")

LASTS = "print('begun', flush=True); import time; time.sleep(600)"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the hub of this test's sandboxes is, and nobody else's."""
    temporary = Path(tempfile.mkdtemp(prefix="ps-"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    folder = temporary / f"penstock-sandboxes-{os.getuid()}"
    yield folder
    for hub in processes_in(folder):
        os.kill(hub, signal.SIGKILL)
    shutil.rmtree(temporary)


def test_code_that_blocks_runs_programs_from_many_threads() -> None:
    with LocalSandbox().sync as sandbox, ThreadPoolExecutor(4) as threads:
        requests = [CodeRequest(code=f"print({n})") for n in range(8)]
        results = list(threads.map(sandbox.run, requests))
        cases = [JudgeCase(input="1", expected=["1"])]
        request = JudgeRequest(code="print(input())", cases=cases)
        judged = sandbox.judge(request, InlineSuite([Case(b"1", (b"1",))]))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
    assert judged.verdicts == "P"


def test_a_blocking_sandbox_that_is_closed_fails_what_runs_and_says_what_to_do() -> None:
    local = LocalSandbox(concurrency=1)
    with local.sync as sandbox, ThreadPoolExecutor(1) as threads:
        sandbox.run(CodeRequest(code=""))
        running = threads.submit(sandbox.run, CodeRequest(code=LASTS, run_timeout=600))
        until(local.jails.slots.locked, "a program")
        sandbox.close()
        with pytest.raises(SandboxFailure):
            running.result()
        with pytest.raises(SandboxUnfit, match=r"closed; make another one: LocalSandbox\(\)"):
            sandbox.run(CodeRequest(code=""))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that is what it is about
def test_a_fork_of_who_has_a_blocking_sandbox_is_refused_and_ends_nothing() -> None:
    with LocalSandbox().sync as sandbox:
        sandbox.run(CodeRequest(code=""))
        if (child := os.fork()) == 0:
            try:
                signal.alarm(100)
                with sandbox, pytest.raises(SandboxUnfit, match="of another process"):
                    sandbox.run(CodeRequest(code=""))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sandbox.run(CodeRequest(code="print(1)")).stdout == "1\n"


@pytest.mark.parametrize("problem", [OSError, KeyboardInterrupt])
def test_a_blocking_sandbox_whose_end_fails_leaves_no_thread_and_nobody_waiting(
    problem: type[BaseException],
) -> None:
    class Endless:
        async def run(self, request: CodeRequest) -> CodeResult:
            began.set()
            await asyncio.Event().wait()
            raise AssertionError

        async def judge(self, request: JudgeRequest, suite: Any) -> JudgeResult:
            raise NotImplementedError

        async def close(self) -> None:
            if problem is OSError:
                raise OSError
            signal.pthread_kill(caller, signal.SIGINT)
            await asyncio.Event().wait()

    began, caller = threading.Event(), threading.get_ident()
    sandbox = SyncSandbox(Endless())
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, CodeRequest(code=""))
        assert began.wait(100)
        with pytest.raises(problem):
            sandbox.close()
        with pytest.raises(concurrent.futures.CancelledError):
            running.result()
    assert sandbox._loop.is_closed()
    assert sandbox._thread
    assert not sandbox._thread.is_alive()


def test_a_concurrent_worker_runs_programs_in_a_sandbox_of_its_own(real_redis, tmp_path) -> None:
    queue = open_queue(real_redis)
    jobs = [queue.enqueue("worker.jobs.run_code", {"code": f"print({n})"}) for n in range(12)]
    with at_work(real_redis, sandbox="local", sandbox_fusion_url=""):
        until(lambda: all(job.get_status() == "finished" for job in jobs), "all jobs")
    results = [job.return_value() for job in jobs]
    assert [result["run_result"]["stdout"] for result in results] == [f"{n}\n" for n in range(12)]
    assert {result["isolation"] for result in results} == {"ns"}


def test_kill_horse_ends_the_programs_and_the_worker_goes_on(
    real_redis, tmp_path, monkeypatch
) -> None:
    from rq.command import send_kill_horse_command

    monkeypatch.setenv("PENSTOCK_SANDBOX_EXPOSE", str(tmp_path))
    queue = open_queue(real_redis)
    with at_work(real_redis, sandbox="local") as worker:
        warm = queue.enqueue("worker.jobs.run_code", {"code": "print(1)"})
        until(lambda: warm.get_status() == "finished", "the sandbox to be warm")
        until(lambda: len(processes_named(str(tmp_path))) > 0, "its processes")
        job = queue.enqueue(
            "worker.jobs.run_code",
            # No more of them than its limit: it would end of that before it is killed.
            {"code": "import os, signal\nfor _ in range(20): os.fork() or os.setsid() or "
             "signal.pause()\nsignal.pause()", "run_timeout": 600},
        )  # fmt: skip
        until(lambda: len(processes_named(str(tmp_path))) > 20, "the program's tree")
        send_kill_horse_command(real_redis, worker.name)
        until(lambda: job.get_status() == "failed", "the job to be broken off")
        until(lambda: len(processes_named(str(tmp_path))) < 10, "the tree to be dead")
        after = queue.enqueue("worker.jobs.run_code", {"code": "print(2)"})
        until(lambda: after.get_status() == "finished", "the next one")
    until(lambda: processes_named(str(tmp_path)) == [], "the fork server to end")


LARGE_FOR_A_WHILE = """
import os, time
first = os.getpid()
for _ in range(4): os.fork()
time.sleep(2)
if os.getpid() == first: print("done")
"""


def test_a_job_whose_fork_server_dies_runs_again_in_the_next(
    real_redis, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_EXPOSE", str(tmp_path))
    queue = open_queue(real_redis)
    with at_work(real_redis, sandbox="local"):
        job = queue.enqueue("worker.jobs.run_code", {"code": LARGE_FOR_A_WHILE})
        until(lambda: len(processes_named(str(tmp_path))) > 16, "the program's tree")
        server = min(processes_named(str(tmp_path)))
        os.kill(server, signal.SIGKILL)
        until(lambda: job.get_status() == "finished", "its second attempt")
        assert server not in processes_named(str(tmp_path))
    result = job.return_value()
    assert (result["status"], result["run_result"]["stdout"]) == ("Success", "done\n")


@pytest.mark.parametrize("when", ["as it starts", "in its self-test"])
async def test_a_fork_server_that_is_killed_says_nothing_of_the_machine(when, monkeypatch) -> None:
    started, killed = subprocess.Popen, list[int]()

    def start(command, *args, **kwargs):
        process = started(command, *args, **kwargs)
        if when == "as it starts" and not killed:
            killed.append(process.pid)
            process.kill()
        return process

    async def check(run, *rest):
        async def run_and_kill(program):
            running = asyncio.ensure_future(run(program))
            if when == "in its self-test" and not killed:
                (server,) = sandbox.jails._servers.values()
                while not server.posted:  # noqa: ASYNC110 - a number, and soon
                    await asyncio.sleep(0)
                killed.append(server._process.pid)
                server._process.kill()
            return await running

        return await tested(run_and_kill, *rest)

    tested = selftest.check
    monkeypatch.setattr("jail.launch.subprocess.Popen", start)
    monkeypatch.setattr(selftest, "check", check)
    sandbox = LocalSandbox()
    try:
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
        assert killed
    finally:
        await sandbox.close()


def test_it_takes_as_many_jobs_as_the_sandbox_has_room_for(monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_CONCURRENCY", "3")
    assert WorkerSettings.load(sandbox="local").jobs_at_once == 3
    assert WorkerSettings.load(sandbox="local", concurrency=7).jobs_at_once == 7
    assert WorkerSettings.load(sandbox="fusion").jobs_at_once == 256


@pytest.mark.parametrize("kind", ["fork", "preloaded"])
def test_the_jobs_of_stock_workers_share_one_sandbox(real_redis, folder, kind) -> None:
    jobs = [stock.enqueue(real_redis, code=f"print({n})") for n in range(3)]
    said = stock.run(kind, url_of(real_redis), PENSTOCK_SANDBOX="local", TMPDIR=str(folder.parent))
    results = [job.return_value() for job in jobs]
    assert [result and result["run_result"]["stdout"] for result in results] == [
        "0\n", "1\n", "2\n",
    ], said  # fmt: skip
    assert len(hubs(folder)) == 1
    assert len(processes_in(folder)) == 1


async def run(sandbox: Any, code: str = "print(1)") -> str:
    return str((await sandbox.run(CodeRequest(code=code, run_timeout=600))).stdout)


async def test_those_who_come_first_together_start_one(folder) -> None:
    told = await asyncio.gather(*(run(SharedSandbox(), f"print({n})") for n in range(6)))
    assert told == [f"{n}\n" for n in range(6)]
    assert len(processes_in(folder)) == 1


async def test_a_program_ends_with_whoever_asked_for_it(folder, monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_CONCURRENCY", "1")
    sandbox = SharedSandbox()
    assert await run(sandbox) == "1\n"
    lasting = asyncio.create_task(run(sandbox, LASTS))
    second = asyncio.create_task(run(sandbox, "print(2)"))
    done, _ = await asyncio.wait([lasting, second], timeout=0.3)
    assert not done, "the only place is taken"
    lasting.cancel()
    assert await second == "2\n"


async def test_after_its_end_the_next_one_starts_another(folder, monkeypatch) -> None:
    sandbox, asked = SharedSandbox(), asyncio.Event()
    await run(sandbox)
    (hub,) = processes_in(folder)

    async def send(*given: Any) -> None:
        await wire_send(*given)
        asked.set()

    wire_send = wire.send
    monkeypatch.setattr(wire, "send", send)
    lasting = asyncio.create_task(run(sandbox, LASTS))
    await asked.wait()
    os.kill(hub, signal.SIGKILL)
    with pytest.raises(SandboxUnreachable, match="went away"):
        await lasting
    assert await run(sandbox) == "1\n"


async def test_it_is_given_no_secret(folder, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    await run(SharedSandbox())
    (hub,) = processes_in(folder)
    assert b"sk-secret" not in Path(f"/proc/{hub}/environ").read_bytes()


async def test_what_the_sandbox_refuses_is_refused_here(folder) -> None:
    with pytest.raises(SandboxUnfit, match="'scala' is not one of this sandbox's"):
        await SharedSandbox().run(CodeRequest(code="1", language="scala"))


async def test_programs_and_sessions_have_one_process_and_one_fork_server(folder) -> None:
    await run(SharedSandbox())
    session = await LocalSessions().open(SessionRequest())
    assert await run(SharedSandbox(), "print(2)") == "2\n"
    assert (await session.run(CommandRequest(["echo", "3"]))).stdout == b"3\n"
    (hub,) = processes_in(folder)
    assert len(children_of(hub)) == 1
    await session.end()


async def test_the_hub_ends_when_nobody_asks_any_more(folder) -> None:
    sandbox = SharedSandbox(sessions=SessionSettings(session_hub_idle=0.01))
    await run(sandbox)
    async with asyncio.timeout(100):
        while processes_in(folder):  # noqa: ASYNC110 - nobody says so
            await asyncio.sleep(0.02)
    assert hubs(folder) == []
    assert await run(sandbox, "print(2)") == "2\n"


async def test_a_program_that_comes_as_the_hub_ends_is_served(folder) -> None:
    """The path is given up first, and callers that found it are waited for."""
    sandbox = SharedSandbox(sessions=SessionSettings(session_hub_idle=0.2))
    await run(sandbox)
    told = []
    for _ in range(6):
        told.append(await run(sandbox))
        await asyncio.sleep(0.2)  # as long as it waits for the next one
    assert told == ["1\n"] * 6


async def test_it_judges_and_asks_for_the_cases_that_it_comes_to(folder) -> None:
    class Lacking(InlineSuite):
        async def case(self, index: int) -> Case:
            asked.append(index)
            if index == 2:
                raise SandboxBroken("no such blob", reason="suite_gone")
            return await super().case(index)

    asked: list[int] = []
    cases = [JudgeCase(input="\0" + str(n % 4), expected=["x", "\x000"]) for n in range(100)]
    request = JudgeRequest(code="print(input())", cases=cases, stop=2, wall_timeout=60.0)
    suite = Lacking([Case(b"\0%d" % (n % 4), (b"x", b"\x000")) for n in range(100)])
    result = await SharedSandbox().judge(request, suite)
    assert result.verdicts == "PWMW" + "S" * 96
    assert result.reasons[2] == "suite_gone"
    assert max(asked) < 8


async def test_a_case_that_comes_after_the_verdict_costs_nothing(folder) -> None:
    class Late(InlineSuite):
        async def case(self, index: int) -> Case:
            if index > 1:
                asked.append(index)
                await asyncio.sleep(1)  # the first two have decided it by then
            return await super().case(index)

    asked: list[int] = []
    cases = [JudgeCase(input="1", expected=["x"]) for _ in range(100)]
    request = JudgeRequest(code="print(input())", cases=cases, stop=2, wall_timeout=60.0)
    suite = Late([Case(b"1", (b"x",)) for _ in range(100)])
    result = await SharedSandbox().judge(request, suite)
    assert result.verdicts == "WW" + "S" * 98
    assert asked == [2]


async def test_what_it_does_not_judge_is_refused_here(folder) -> None:
    request = JudgeRequest(code="1", language="scala", cases=[JudgeCase()])
    with pytest.raises(SandboxUnfit, match="'scala' is not one of this sandbox's"):
        await SharedSandbox().judge(request, InlineSuite.of(request.cases or []))


def test_a_folder_that_others_may_write_to_is_refused(folder) -> None:
    folder.mkdir()
    folder.chmod(0o770)
    with pytest.raises(SettingError, match="others may write to"):
        SharedSandbox()


def test_a_sandbox_that_names_nothing_is_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_LEVEL", "landlock")
    monkeypatch.setenv("PENSTOCK_SANDBOX_PRELOAD", "json")
    monkeypatch.setenv("PENSTOCK_SANDBOX_CONCURRENCY", "3")
    jails = LocalSandbox().jails
    assert (jails.level, jails.config.preload, jails.concurrency) == ("landlock", ("json",), 3)
    jails = LocalSandbox(ServerConfig(level="ns"), concurrency=2).jails
    assert (jails.level, jails.concurrency) == ("ns", 2)


async def test_a_program_has_the_memory_that_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX_MEMORY_MB", "96")
    sandbox = LocalSandbox()
    try:
        result = await sandbox.run(CodeRequest(code="x = bytearray(400 << 20); print(len(x))"))
    finally:
        await sandbox.close()
    assert not result.ok
