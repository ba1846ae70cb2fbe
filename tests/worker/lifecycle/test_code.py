"""Code jobs whose turns share a session."""

import asyncio
import base64
import math
import threading
from dataclasses import replace
from typing import Any

import pytest

from jail.errors import SandboxUnfit
from jail.judge.printed import Compared
from jail.limits import DEFAULTS
from jail.models import OUTPUT_LIMIT, CodeRequest
from limiter import TokenBucket
from tests.worker.lifecycle.conftest import at_landlock, quick
from worker import RetryPolicy
from worker.lifecycle import FileRefused, SandboxLifecycle, SandboxRef, code
from worker.lifecycle.code import SessionSandbox
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.local.provider import LocalError
from worker.run.execution import execute, outlives
from worker.run.turn import GateTurn, JobAtHand


async def test_turns_of_one_instance_share_their_files_and_others_do_not(real_redis, tmp_path):
    settings = quick(startup_timeout=60.0, session_idle=60.0)
    provider = LocalProvider(tmp_path)
    life = SandboxLifecycle(real_redis, provider, run="test", settings=settings)
    sandbox = SessionSandbox(life)
    first = CodeRequest(code="open('kept', 'w').write('7'); print(input())", stdin="hi",
                        instance_id="sample-7")  # fmt: skip
    assert (await sandbox.run(first)).stdout == "hi\n"
    again = CodeRequest(
        code="print(open('kept').read())", instance_id="sample-7", fetch_files=["kept", "absent"]
    )
    result = await sandbox.run(again)
    assert (result.stdout, result.error_kind) == ("7\n", "none")
    assert result.files == {"kept": base64.b64encode(b"7").decode()}
    late = CodeRequest(code="while True: pass", instance_id="sample-7", run_timeout=1)
    assert (await sandbox.run(late)).error_reason == "run_timeout"
    alone = await sandbox.run(CodeRequest(code="open('kept')"))
    assert alone.error_kind == "user"
    assert "FileNotFoundError" in alone.stderr
    with pytest.raises(SandboxUnfit, match="not java"):
        await sandbox.run(CodeRequest(code="x", language="java", instance_id="sample-7"))
    assert await life.end_session("sample-7")
    assert [each async for each in provider.list({})] == []
    await sandbox.close()


async def test_fetched_files_are_bounded_together(real_redis, tmp_path, monkeypatch):
    monkeypatch.setattr(code, "DEFAULTS", replace(DEFAULTS, fetched=10))
    settings = quick(startup_timeout=60.0)
    life = SandboxLifecycle(real_redis, LocalProvider(tmp_path), run="test", settings=settings)
    sandbox = SessionSandbox(life)
    program = "for name in 'abc': open(name, 'w').write(name * 6)\nopen('d', 'w').write('d')"
    result = await sandbox.run(CodeRequest(code=program, fetch_files=list("abcd")))
    assert sorted(result.files) == ["a", "d"]
    await sandbox.close()


async def test_a_command_that_cannot_be_is_no_failure_of_its_sandbox(real_redis, tmp_path):
    settings = quick(startup_timeout=60.0)
    life = SandboxLifecycle(real_redis, LocalProvider(tmp_path), run="test", settings=settings)
    async with life.open() as sandbox:
        for words, cwd in ((["bash", "-c", "echo a\0b"], ""), (["pwd"], "a\0b")):
            ended = await sandbox.exec(words, cwd=cwd)
            assert (ended.exit_code, ended.refused) == (126, "not_executable")
        with pytest.raises(FileRefused, match="no UTF-8"):
            await sandbox.write_file("file", "\ud800")
        with pytest.raises(FileRefused, match=r"no UTF-8.*'its input'"):
            await sandbox.exec(["cat"], stdin="\ud800")
        assert (await sandbox.exec(["true"])).exit_code == 0


async def test_at_landlock_a_session_runs_bash_and_says_why_no_python(
    real_redis, tmp_path, monkeypatch
):
    at_landlock(monkeypatch)
    settings = quick(startup_timeout=60.0, session_idle=60.0)
    life = SandboxLifecycle(real_redis, LocalProvider(tmp_path), run="test", settings=settings)
    sandbox = SessionSandbox(life)
    said = CodeRequest(code="echo 7 > kept; cat kept", language="bash", instance_id="s")
    assert (await sandbox.run(said)).stdout == "7\n"
    with pytest.raises(SandboxUnfit, match="PENSTOCK_SANDBOX_LEVEL=landlock"):
        await sandbox.run(CodeRequest(code="print(1)", instance_id="s"))
    assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
    assert await life.end_session("s")
    await sandbox.close()


async def test_as_much_output_is_kept_as_its_reader_compares(lifecycle, cloud):
    sandbox = SessionSandbox(lifecycle())
    much = {"code": "head -c 2000000 /dev/zero | tr '\\0' x", "language": "bash"}
    for kind, kept in ((CodeRequest, OUTPUT_LIMIT), (Compared, 2_000_000)):
        result = await sandbox.run(kind.read(much))
        assert result.stdout.count("x") == kept


@pytest.mark.parametrize("instance", [None, "s"])
async def test_a_file_that_no_sandbox_takes_is_the_requests_fault(lifecycle, cloud, instance):
    sandbox, content = SessionSandbox(lifecycle()), base64.b64encode(b"x").decode()
    first = CodeRequest(code="echo 1", language="bash", instance_id=instance)
    assert (await sandbox.run(first)).stdout == "1\n"
    files = {"file": content, "file/below": content}
    with pytest.raises(SandboxUnfit, match="file/below") as refusal:
        await sandbox.run(first.model_copy(update={"files": files}))
    assert refusal.value.reason == "refused"
    await sandbox._lifecycle.end_session("s")
    assert cloud.live == 0


async def test_a_file_that_an_earlier_program_keeps_from_being_written_buys_no_mask(
    lifecycle, cloud
):
    sandbox = SessionSandbox(lifecycle())
    first = CodeRequest(code="mkdir test.py", language="bash", instance_id="s")
    assert (await sandbox.run(first)).error_kind == "none"
    tests = {"test.py": base64.b64encode(b"x").decode()}
    graded = CodeRequest(code="echo 1", language="bash", instance_id="s", files=tests)
    result = await sandbox.run(graded)
    assert (result.error_kind, result.stdout) == ("user", "")
    assert "earlier programs left no place for it: files: 'test.py'" in result.stderr
    asks = CodeRequest(code="1", language="bash", instance_id="s", fetch_files=["test.py"])
    assert (await sandbox.run(asks)).files == {}
    await sandbox._lifecycle.end_session("s")
    assert cloud.live == 0


async def test_a_session_that_dies_under_a_turn_is_not_opened_anew_for_it(lifecycle, cloud):
    sandbox = SessionSandbox(lifecycle())
    dying = CodeRequest(code="echo 1", language="bash", instance_id="s")
    assert (await sandbox.run(dying)).stdout == "1\n"
    async with sandbox._lifecycle.session("s") as box:
        cloud.ask("terminate", id=box.id)
        with pytest.raises(SandboxUnfit, match="is lost") as lost:
            await sandbox.run(dying)
    assert (lost.value.reason, lost.value.retryable) == ("session_lost", False)


async def test_turns_that_overlap_run_a_program_each(lifecycle):
    sandbox = SessionSandbox(lifecycle())
    programs = [CodeRequest(code=f"echo {n}", language="bash", instance_id="s") for n in range(4)]
    results = await asyncio.gather(*(sandbox.run(program) for program in programs))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(4)]
    assert len({result.executor_pod_name for result in results}) == 1


async def test_a_local_sandbox_of_another_machine_is_not_believed_gone(tmp_path):
    provider = LocalProvider(tmp_path)
    elsewhere = SandboxRef("penstock-1@another-machine", "penstock-1")
    with pytest.raises(LocalError, match="is on another-machine"):
        await provider.terminate(elsewhere.id)
    assert not await provider.is_alive(elsewhere)


async def test_a_command_that_fails_is_not_run_again_in_its_session(lifecycle, monkeypatch):
    sandbox = SessionSandbox(lifecycle())
    turn = CodeRequest(code="echo 1", language="bash", instance_id="s")
    assert (await sandbox.run(turn)).stdout == "1\n"

    async def fails(*_: Any, **__: Any) -> Any:
        raise OSError("the line was cut")

    monkeypatch.setattr(sandbox._lifecycle.provider, "exec", fails)
    with pytest.raises(SandboxUnfit, match="the line was cut") as failure:
        await sandbox.run(turn)
    assert (failure.value.reason, failure.value.may_be_running) == ("exec_failed", True)


async def test_a_cancelled_program_of_a_session_keeps_its_permit(lifecycle, redis, monkeypatch):
    sandbox, begun = SessionSandbox(lifecycle()), threading.Event()
    gate = TokenBucket(redis, "code", limit=1)

    async def runs_on(*_: Any, **__: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("worker.run.execution.KILLED_WITHIN", 0.0)
    monkeypatch.setattr(sandbox._lifecycle.provider, "exec", runs_on)
    request = CodeRequest(code="sleep 90", language="bash", instance_id="s", run_timeout=90)
    execution = JobAtHand(GateTurn(gate), seconds=math.inf)
    running = asyncio.create_task(execute(request, execution, sandbox, RetryPolicy()))
    await asyncio.to_thread(begun.wait)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await gate.status()).in_flight == 1
    assert outlives(sandbox, request) == 90  # its hold, should the worker die
