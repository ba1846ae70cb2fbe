"""A tool that remembers: the calls of a trajectory meet in one sandbox, on whichever worker."""

import asyncio
import contextlib
import copy
import os
import pickle
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from ground.process import PerProcess
from jail.errors import SandboxFailure
from jail.models import CodeRequest, CodeResult, CommandResult
from tests.harness import killing
from tests.harness.servers import until
from tests.worker.concurrent.crew import work_in_process
from worker.lifecycle import SandboxLifecycle
from worker.lifecycle.registry.registry import Registry
from worker.tool import SandboxFusionTool
from worker.tool import sessions as trajectory_session
from worker.tool.sessions import Sessions, TrajectorySession, _Ends

WORKER = {"sandbox": "worker.lifecycle.code.sessions", "gate": "code", "gate_limit": 4}


@pytest.fixture
def boxes(url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_LOCAL_SANDBOXES", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_SESSION_HUB_IDLE", "2")


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
    life, its = SandboxLifecycle.from_settings("local"), ""
    try:
        with killing.Child(work_in_process, url, ["code"], WORKER) as first:
            text, metrics = await call(tool, one, "n = 42; print('kept')")
            assert (text, metrics["error_kind"]) == ("kept\n", "none")
            first.kill()
        with killing.Child(work_in_process, url, ["code"], WORKER):
            assert (await call(tool, one, "print(n)"))[0] == "42\n"
            assert "NameError: name 'n' is not defined" in (await call(tool, other, "n"))[0]
            assert await life.end_session(one.penstock_session.name)
            text, metrics = await call(tool, one, "print(n)")
            assert other.extra_fields == {}
            its = other.penstock_session.name
            del other
            box = life.registry.session_of(its)
            await asyncio.to_thread(ended, life.registry, box)
        assert f"of session {one.penstock_session.name} has ended" in text
        assert metrics["error_reason"] == "session_lost"
        assert one.extra_fields["extras"]["traj_exit_reason"] == "infrastructure: session_lost"
    finally:
        for session in (one.penstock_session.name, its):
            await life.end_session(session)
        life.registry.close()


@pytest.fixture
def registry(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("PENSTOCK_RUN", "run-1")
    # Of its own: sessions of earlier tests, whose Redis is gone, would be ended first, 5 s each.
    ends: PerProcess[str, _Ends] = PerProcess()
    monkeypatch.setattr(trajectory_session, "_ends", ends)
    with contextlib.closing(Registry(url, "run-1")) as registry:
        yield registry
    ends.stop_all()


class Agent:
    """A host's object of a trajectory; its class may have no room for what is put on it."""

    def __init__(self) -> None:
        self.request_id, self.extra_fields = "t-1", dict[str, Any]()


class Narrow(Agent):
    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "penstock_session":
            raise AttributeError(name)
        super().__setattr__(name, value)


def opened(registry: Registry, session: str) -> str:
    """Its sandbox, as a worker registers it. It is given no object of the host: an error of Redis,
    as of a script it does not know yet, keeps what its callers held until garbage is collected."""
    turn = registry.session(session, f"box-{session}", "worker", 60.0)
    assert (turn.what, registry.state(turn.name)) == ("open", "WAITING")
    return turn.name


def ended(registry: Registry, name: str) -> None:
    until(lambda: registry.state(name) == "TERMINATING", "its session to be the reaper's")


async def test_release_ends_the_session_of_an_instance(registry) -> None:
    tool = SandboxFusionTool({"stateful": True})
    boxes = []
    for name in ("t-1", "t-2"):
        await tool.create(name)
        boxes.append(opened(registry, tool._session(name, None)))
    for name, box in zip(("t-2", "t-1"), reversed(boxes), strict=True):
        await tool.release(name)
        ended(registry, box)
        await tool.release(name)


async def test_a_session_ends_with_the_hosts_trajectory_and_not_with_a_call(registry) -> None:
    tool, agent = SandboxFusionTool({"stateful": True}), Agent()
    for instance in ("call-1", "call-2"):
        await tool.create(instance)
        assert tool._session(instance, agent) == tool._session("call-1", agent)
        await tool.release(instance)
    other = Agent()
    names = tool._session("x", agent), tool._session("y", other)
    box, its = (opened(registry, name) for name in names)
    del agent
    ended(registry, box)
    assert registry.state(its) == "WAITING"


async def test_the_session_of_a_trajectory_that_was_copied_is_ended_by_no_copy(registry) -> None:
    tool, agents = SandboxFusionTool({"stateful": True}), [Agent(), Agent(), Agent()]
    names = [tool._session(str(n), agent) for n, agent in enumerate(agents)]
    moved, copied, last = (opened(registry, name) for name in names)
    twin = pickle.loads(pickle.dumps(agents[0]))
    assert tool._session("x", twin) == agents[0].penstock_session.name  # type: ignore[attr-defined]
    copy.deepcopy(agents[1])
    del twin
    agents.clear()
    ended(registry, last)  # told after the others would have been
    assert {registry.state(moved), registry.state(copied)} == {"WAITING"}


async def test_a_host_whose_object_takes_no_more_has_sessions_too(registry) -> None:
    tool, agent = SandboxFusionTool({"stateful": True}), Narrow()
    assert tool._session("call-1", agent) == tool._session("call-2", agent) == "t-1"


async def test_calls_of_an_instance_that_begin_at_once_share_its_session(monkeypatch) -> None:
    both = threading.Barrier(2)

    class Slow(TrajectorySession):
        def __init__(self, *given: Any) -> None:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.2)  # for another one that is being made: there is to be none
            super().__init__(*given)

    monkeypatch.setattr("worker.tool.sessions.TrajectorySession", Slow)
    tool = SandboxFusionTool({"stateful": True})
    await tool.create("t-1")
    calls = (asyncio.to_thread(tool._session, "t-1", None) for _ in range(2))
    assert len(set(await asyncio.gather(*calls))) == 1


async def test_a_redis_that_is_away_keeps_no_release_waiting(monkeypatch, caplog) -> None:
    caplog.set_level("INFO", "penstock.tool")
    monkeypatch.setattr("worker.tool.sessions._PATIENCE", 0.01)
    tool = SandboxFusionTool({"stateful": True, "redis_url": "redis://127.0.0.1:1"})
    await tool.create("t-1")
    tool._session("t-1", None)
    await tool.release("t-1")
    until(lambda: "it ends after PENSTOCK_SESSION_IDLE" in caplog.text, "it to be told")


def test_a_session_whose_end_fails_in_an_unforeseen_way_keeps_no_other_from_ending(
    url, monkeypatch, caplog
) -> None:
    ended: SimpleQueue[str] = SimpleQueue()

    def end(_: object, session: str) -> None:
        if session == "odd":
            raise ValueError("unforeseen")
        if session == "t-1":  # a session of an earlier test may end now, too
            ended.put(session)

    monkeypatch.setattr("worker.tool.sessions._end", end)
    monkeypatch.setattr("worker.tool.sessions._registry", lambda *_: None)
    ends = _Ends()
    for session in ("odd", "t-1"):
        ends.over.put((url, session))
    try:
        assert ended.get(timeout=100) == "t-1"
    finally:
        ends.over.put(None)
    assert "unforeseen" in caplog.text


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_while_a_session_is_made_elsewhere_can_make_its_own() -> None:
    with trajectory_session._ends.guard:
        if (child := os.fork()) == 0:
            signal.alarm(30)  # ends it, should it wait for the lock
            try:
                TrajectorySession("t-1", None)
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
    with pytest.raises(SandboxFailure, match="the sandbox a of session t-1 has ended"):
        sessions.check("t-1", ran("b"))
