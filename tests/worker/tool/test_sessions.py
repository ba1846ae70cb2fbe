"""A tool that remembers: the calls of a trajectory meet in one sandbox, on whichever worker."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from tests.harness import killing
from tests.harness.servers import until
from tests.worker.crew import work_in_process
from worker.errors import SandboxFailure
from worker.lifecycle import SandboxLifecycle
from worker.models import CodeRequest, CodeResult, CommandResult
from worker.tool import SandboxFusionTool
from worker.tool.sessions import Sessions

WORKER = {"sandbox": "worker.lifecycle.code.sessions", "gate": "code", "gate_limit": 4}


@pytest.fixture
def boxes(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCAL_SANDBOXES", str(tmp_path))


def trajectory(name: str) -> Any:
    """As a host of today has one: each call is an instance of its own."""
    return SimpleNamespace(request_id=name, extra_fields={})


async def call(tool: SandboxFusionTool, agent_data: Any, code: str) -> tuple[str, dict[str, Any]]:
    instance, _ = await tool.create()
    response, _, metrics = await tool.execute(instance, {"code": code}, agent_data=agent_data)
    await tool.release(instance)
    return str(response.text), metrics


@pytest.mark.usefixtures("boxes")
async def test_turns_on_different_workers_keep_their_state(url) -> None:
    tool, one, other = SandboxFusionTool({"stateful": True}), trajectory("t-1"), trajectory("t-2")
    life = SandboxLifecycle.from_settings("local")
    try:
        with killing.Child(work_in_process, url, ["code"], WORKER) as first:
            text, metrics = await call(tool, one, "n = 42; print('kept')")
            assert (text, metrics["error_kind"]) == ("kept\n", "none")
            first.kill()
        with killing.Child(work_in_process, url, ["code"], WORKER):
            assert (await call(tool, one, "print(n)"))[0] == "42\n"
            assert "NameError: name 'n' is not defined" in (await call(tool, other, "n"))[0]
            assert await life.end_session(one.penstock_session)
            text, metrics = await call(tool, one, "print(n)")
        assert f"the session {one.penstock_session} was in the sandbox" in text
        assert metrics["error_reason"] == "session_lost"
        assert one.extra_fields["extras"]["traj_exit_reason"] == "infrastructure: session_lost"
        assert other.extra_fields == {}
    finally:
        for agent_data in (one, other):
            await life.end_session(agent_data.penstock_session)
        life.registry.close()


class Endless:
    """A sandbox with sessions, whose first program never ends."""

    name, languages, keeps_sessions = "endless", frozenset({"python"}), True

    def __init__(self, settings: object) -> None: ...

    async def run(self, request: CodeRequest) -> CodeResult:
        client: Any = redis.Redis.from_url(os.environ["PENSTOCK_REDIS_URL"])
        if client.incr("runs") == 1:
            await asyncio.Event().wait()
        return ran("a")

    async def close(self) -> None: ...


async def test_what_a_killed_worker_had_begun_is_not_run_again_in_its_session(
    url, real_redis
) -> None:
    tool, agent_data = SandboxFusionTool({"stateful": True}), trajectory("t-1")
    worker = {"sandbox": f"{__name__}.Endless", "job_lease": 0.6}
    with killing.Child(work_in_process, url, ["code"], worker) as first:
        calling = asyncio.create_task(call(tool, agent_data, "x += 1"))
        await asyncio.to_thread(until, lambda: real_redis.exists("runs"), "it to run")
        first.kill()
    with killing.Child(work_in_process, url, ["code"], worker):
        text, metrics = await calling
        assert (metrics["error_reason"], metrics["traj_masked"]) == ("session_repeated", 1)
        _, stateless = await call(SandboxFusionTool({}), agent_data, "1")
    assert "the worker that began it has died" in text
    assert (real_redis.get("runs"), stateless["error_kind"]) == (b"2", "none")


def ran(sandbox: str | None, status: Any = "Success") -> CodeResult:
    return CodeResult(
        status=status,
        run_result=CommandResult(status="Finished", return_code=0),
        executor_pod_name=sandbox,
    )


def test_a_session_is_lost_where_another_sandbox_answers_for_it() -> None:
    sessions = Sessions()
    for result in (ran("a"), ran(None), ran("b", "SandboxError"), ran("a")):
        sessions.check("t-1", result)
    sessions.check("t-2", ran("b"))
    with pytest.raises(SandboxFailure, match="t-1 was in the sandbox a, which is gone"):
        sessions.check("t-1", ran("b"))
