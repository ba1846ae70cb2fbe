"""Sessions by instance id: opened once, used from anywhere, ended when they idle."""

import asyncio
import contextlib
import threading

import pytest

from ground import connect
from jail.errors import SandboxUnfit
from tests.harness import killing
from tests.worker.lifecycle.cloud import CloudProvider
from tests.worker.lifecycle.conftest import gate_of, quick, until
from worker.lifecycle import (
    CommandFailed,
    SandboxLifecycle,
    SandboxLost,
    SandboxSpec,
    StartRefused,
    open_sandbox,
)
from worker.lifecycle.code import SessionSandbox
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.registry.registry import Registry


async def test_turns_on_different_workers_find_the_same_sandbox(lifecycle, cloud):
    one, other = lifecycle(), lifecycle()
    async with one.session("sample-7") as sandbox:
        await sandbox.write_file("state", "1")
    async with other.session("sample-7") as sandbox:
        assert await sandbox.read_file("state") == b"1"
    assert cloud.stats()["creates"] == 1
    assert await one.end_session("sample-7")
    assert cloud.live == 0
    assert not await one.end_session("sample-7")


async def test_however_many_ask_it_is_opened_once(lifecycle, cloud):
    cloud.set(latency=[0.2, 0.2])
    lives = [lifecycle() for _ in range(3)]

    async def turn(n: int) -> str:
        async with lives[n % 3].session("sample-7") as sandbox:
            return sandbox.name

    names = await asyncio.gather(*(turn(n) for n in range(9)))
    assert len(set(names)) == 1
    assert cloud.stats()["creates"] == 1
    assert lives[0].registry.look().facts["settled"] == "1"


async def test_who_waits_for_an_opener_that_fails_opens_it_himself(lifecycle, cloud):
    cloud.set(latency=[0.2, 0.2], create=["fail", "ok"])
    first, second = lifecycle(start_attempts=1), lifecycle()
    async with asyncio.timeout(100):
        failing = asyncio.create_task(first.session("s").__aenter__())
        await until(lambda: first.registry.look().count)
        async with second.session("s") as sandbox:
            assert await sandbox.is_alive()
    with pytest.raises(Exception, match="no capacity"):
        await failing


async def test_who_waits_for_an_opener_outlasts_a_cut_connection(private_redis, cloud, monkeypatch):
    server, go_on = private_redis(aof=False), asyncio.Event()
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())

    async def later(spec, **given):
        await go_on.wait()
        return await life.start(spec, **given)

    async def turn() -> str:
        async with life.session("s") as sandbox:
            return sandbox.name

    def waiting() -> list[str]:
        return [one["id"] for one in client.client_list() if one["cmd"] == "xread"]

    monkeypatch.setattr(life._sessions, "_start", later)
    with contextlib.closing(connect(server.url)) as client:
        turns = [asyncio.create_task(turn()) for _ in range(2)]
        await until(waiting)
        (cut,) = waiting()
        client.client_kill_filter(_id=cut)
        await until(lambda: waiting() not in ([], [cut]) or any(one.done() for one in turns))
        go_on.set()
        async with asyncio.timeout(100):
            assert len(set(await asyncio.gather(*turns))) == 1
    life.registry.close()


async def test_an_opener_that_is_killed_gives_way(private_redis, cloud):
    server = private_redis(aof=False)
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    at = killing.before("worker.lifecycle.starting:Start.run")
    with killing.Child(uses_a_session, server.url, cloud.address, 1.0, at=at) as opener:
        assert opener.outcome().killed
    async with asyncio.timeout(100), life.session("sample-7") as sandbox:
        assert await sandbox.is_alive()
    life.registry.close()


async def uses_a_session(url: str, address: str, lease: float = 60.0) -> None:
    settings = quick(sandbox_lease=lease)
    life = SandboxLifecycle(url, CloudProvider(address), run="test", settings=settings)
    async with life.session("sample-7") as sandbox:
        await sandbox.write_file("state", "from a process that has ended")


async def test_a_session_outlives_the_process_that_opened_it(private_redis, cloud, reaper):
    server = private_redis(aof=False)
    killing.run(uses_a_session, server.url, cloud.address)
    life = SandboxLifecycle(server.url, cloud.provider, run="test", settings=quick())
    async with life.session("sample-7") as sandbox:
        assert await sandbox.read_file("state") == b"from a process that has ended"
    life.registry.close()


async def test_a_session_that_idles_is_ended_and_opened_afresh(lifecycle, cloud, reaper):
    life = lifecycle(session_idle=0.1, sandbox_lease=9.0)
    async with life.session("s") as sandbox:
        first = sandbox.id
    eye = reaper()
    async with asyncio.timeout(100):
        while cloud.live:
            await eye.look(wait=False)
            await asyncio.sleep(0.05)
    async with life.session("s") as sandbox:
        assert sandbox.id != first


async def test_a_session_in_use_is_not_idle(lifecycle, cloud, reaper, monkeypatch):
    life, renewals = lifecycle(session_idle=0.1, sandbox_lease=9.0), []
    renew = life.registry.renew
    monkeypatch.setattr(
        life.registry, "renew", lambda rows: (renewals.append(rows), renew(rows))[1]
    )
    eye = reaper()
    async with life.session("s") as sandbox:
        while len(renewals) < 2:  # longer than it may idle
            await eye.look(wait=False)
            await asyncio.sleep(0.1)
        assert await sandbox.is_alive()


async def test_a_provider_that_cannot_be_reached_is_no_proof_that_a_sandbox_died(lifecycle, cloud):
    life = lifecycle()
    async with life.session("s") as sandbox:
        cloud.set(down=True)
        with pytest.raises(CommandFailed, match="503: down"):
            await sandbox.exec(["echo"])
        cloud.set(down=False)
        assert not sandbox.lost
        assert (await sandbox.exec(["echo", "alive"])).stdout == b"alive\n"
    await life.end_session("s")


async def test_a_session_whose_sandbox_died_says_so_once_and_is_opened_anew(lifecycle, cloud):
    life = lifecycle()
    with pytest.raises(SandboxLost):
        async with life.session("s") as sandbox:
            cloud.ask("terminate", id=sandbox.id)
            await sandbox.exec(["echo"])
    async with life.session("s") as sandbox:
        assert (await sandbox.exec(["echo", "anew"])).stdout == b"anew\n"


async def test_an_opener_that_is_cancelled_at_the_last_moment_leaves_its_session_idle(
    lifecycle, cloud, monkeypatch
):
    life, settling, go_on = lifecycle(session_idle=600.0), asyncio.Event(), threading.Event()
    loop, forget = asyncio.get_running_loop(), life.registry.forget

    def slowly(name, fence, counter):
        loop.call_soon_threadsafe(settling.set)
        assert go_on.wait(100)
        return forget(name, fence, counter)

    monkeypatch.setattr(life.registry, "forget", slowly)
    opener = asyncio.create_task(life.session("s").__aenter__())
    await settling.wait()
    opener.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await opener
    assert life.keeper._kept == {}  # nobody renews it for ever
    await until(lambda: life.registry.look().count == 1)  # the opening is forgotten
    (record,) = life.registry.look().records
    assert record.lease_end - life.registry.look().now > 60
    async with life.session("s") as sandbox:
        assert sandbox.name == record.name
    await life.end_session("s")


async def test_a_caller_that_is_cancelled_as_it_asks_for_a_session_opens_nothing(
    lifecycle, cloud, monkeypatch
):
    life, asking, go_on = lifecycle(), asyncio.Event(), threading.Event()
    loop, session = asyncio.get_running_loop(), life.registry.session

    def slowly(*asked):
        turn = session(*asked)
        loop.call_soon_threadsafe(asking.set)
        assert go_on.wait(100)
        return turn

    monkeypatch.setattr(life.registry, "session", slowly)
    caller = asyncio.create_task(life.session("s").__aenter__())
    await asking.wait()
    assert life.registry.look().count == 1
    caller.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert life.registry.look().count == 0  # nobody waits for it for a lease
    assert cloud.stats().get("creates", 0) == 0


async def test_a_session_that_is_ended_while_it_is_opened_has_no_second_sandbox(lifecycle, cloud):
    cloud.set(together=2)  # the first is not ready before there is a second
    first, second = lifecycle(), lifecycle()
    async with asyncio.timeout(100):
        opener = asyncio.create_task(first.session("s").__aenter__())
        await until(lambda: cloud.stats().get("creates"))
        assert await second.end_session("s")
        async with second.session("s") as sandbox:
            with pytest.raises(SandboxLost, match="its session was ended while it was started"):
                await opener
            assert list(cloud.stats()["names"].values()) == [sandbox.name]
            assert await sandbox.is_alive()
        async with first.session("s") as again:
            assert again.name == sandbox.name
    assert cloud.stats()["creates"] == 2
    assert await first.end_session("s")
    assert first.registry.look().count == 0
    assert (await gate_of(first).status()).in_flight == 0


async def test_a_session_that_cannot_be_reached_from_here_says_where_it_is(
    lifecycle, cloud, monkeypatch
):
    """It was taken for one of the process's own provider, with an id that this never gave."""
    life = lifecycle()
    async with life.session("s"):
        pass
    ours = life.provider.scope
    monkeypatch.setattr(CloudProvider, "scope", "cloud@elsewhere")
    with pytest.raises(SandboxUnfit, match=f"sandbox of {ours}, and .* those of cloud@elsewhere"):
        async with life.session("s"):
            raise AssertionError("it was joined")
    monkeypatch.undo()
    assert await life.end_session("s")


async def test_a_session_that_cannot_be_made_leaves_no_trace(lifecycle, cloud):
    life = lifecycle()
    with pytest.raises(StartRefused):
        async with life.session("s", SandboxSpec(image="absent")):
            raise AssertionError("it was made")
    assert life.registry.look().count == 0
    assert (await gate_of(life).status()).in_flight == 0


class Closable(CloudProvider):
    closed = False

    async def close(self):
        self.closed = True


async def test_a_providers_connections_are_freed_by_whoever_made_it(lifecycle, cloud, monkeypatch):
    made = []

    def makes(name):
        made.append(Closable(cloud.address))
        return made[-1]

    for module in ("lifecycle", "provider"):
        monkeypatch.setattr(f"worker.lifecycle.{module}.provider_named", makes)
    redis = lifecycle().target
    async with open_sandbox("cloud", redis=redis, settings=quick()):
        assert not made[0].closed
    assert made[0].closed
    async with open_sandbox(mine := Closable(cloud.address), redis=redis, settings=quick()):
        pass
    assert not mine.closed
    code = SessionSandbox(SandboxLifecycle(redis, mine, settings=quick()))
    await code.close()
    assert mine.closed


class Unclosable(CloudProvider):
    async def close(self):
        raise OSError("it does not hang up")


async def test_a_provider_that_does_not_close_hides_nothing_and_keeps_nothing_open(
    lifecycle, cloud, monkeypatch, caplog
):
    closed, close = [], Registry.close
    monkeypatch.setattr(Registry, "close", lambda self: (closed.append(self), close(self)))
    provider = Unclosable(cloud.address)
    for module in ("lifecycle", "provider"):
        monkeypatch.setattr(f"worker.lifecycle.{module}.provider_named", lambda name: provider)
    redis = lifecycle().target
    with pytest.raises(ZeroDivisionError):
        async with open_sandbox("cloud", redis=redis, settings=quick()):
            raise ZeroDivisionError
    assert "it does not hang up" in caplog.text
    life = SandboxLifecycle(redis, provider, settings=quick())
    with pytest.raises(OSError, match="hang up"):
        await life.close()
    assert life.registry in closed
    assert len(closed) == 2


async def test_a_local_session_keeps_files_and_processes_over_turns(redis, tmp_path):
    provider = LocalProvider(tmp_path / "boxes")
    lives = [
        SandboxLifecycle(redis, provider, run="test", settings=quick(startup_timeout=60.0))
        for _ in range(2)
    ]
    async with lives[0].session("sample-7") as sandbox:
        await sandbox.write_file("notes.txt", "kept")
        started = await sandbox.exec(["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"])
    pid = started.stdout.decode().strip()
    async with lives[1].session("sample-7") as sandbox:
        assert await sandbox.read_file("notes.txt") == b"kept"
        assert (await sandbox.exec(["kill", "-0", pid])).exit_code == 0
    assert await lives[0].end_session("sample-7")
    assert [each async for each in provider.list({})] == []
    for life in lives:
        life.registry.close()
