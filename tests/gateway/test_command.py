"""`penstock gateway`: sessions listed, and one drawn as a tree with its tokens coloured."""

import asyncio
import json
import os
import subprocess

import pytest

import ground
from gateway.engines.pool import named
from gateway.settings import GatewaySettings
from gateway.show import lines
from ground import SettingError
from tests.gateway.scripted.model import Model
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import user, world
from tests.harness import commands
from tests.harness.servers import PrivateRedis


async def penstock(server: PrivateRedis, *words: str) -> "subprocess.CompletedProcess[str]":
    """The command, beside the gateway of this process."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = clean | {"PENSTOCK_REDIS_URL": server.url}
    return await asyncio.to_thread(commands.run, ["gateway", *words], env=env)


def test_a_long_session_is_drawn() -> None:
    turn = {"prompt": 2, "sampled": 1, "keep": 1, "versions": [], "finish": "stop",
            "state": "done", "train": True}  # fmt: skip
    drawn = list(lines([{**turn, "id": n, "parent": n - 1 or None} for n in range(1, 1501)]))
    assert (len(drawn), drawn[2].partition(";")[0]) == (1500, "  └ turn 3")
    forks = [(1, None), (2, 1), (3, 1), (4, 2), (5, None)]
    tree = lines([{**turn, "id": n, "parent": parent} for n, parent in forks])
    assert [line.partition(";")[0] for line in tree] == [
        "turn 1", "├ turn 2", "│ └ turn 4", "└ turn 3", "turn 5",
    ]  # fmt: skip


@pytest.mark.parametrize("url", ["http://", "http://:8000", "http://a:0", "http://a:b", "a:8000"])
def test_an_engine_is_named_by_a_url_with_a_host(url: str) -> None:
    with pytest.raises(SettingError, match="is not KIND=URL"):
        named(GatewaySettings(gateway_engines=f"vllm={url}"))


async def test_open_sessions_are_listed(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    async with world(real_redis, ScriptedVllm()) as here:
        nothing = await penstock(shared_server, "ls")
        assert (nothing.returncode, nothing.stderr) == (0, "no session is open in this run\n")
        agent = await here.open("trajectory-1")
        await agent.says("hello")
        table = (await penstock(shared_server, "ls", "--task", "math")).stdout
        assert agent.sid in table
        assert "trajectory-1" in table
        other = await penstock(shared_server, "ls", "--task", "no such task")
        assert (other.returncode, other.stderr) == (0, "no session is open in this run\n")
        (one,) = json.loads((await penstock(shared_server, "ls", "--json")).stdout)
        sampled = str(len(here.engine.log[0].sampled))
        assert (one["task"], one["seq"], one["tokens"]) == ("math", "1", sampled)


async def test_a_session_is_a_tree_of_turns_and_its_trained_tokens_are_green(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    text = "one two three"
    async with world(real_redis, ScriptedVllm(model=Model(script=lambda *_: text))) as here:
        agent = await here.open()
        await agent.says("hello")
        before = list(agent.history)
        await agent.says("left")
        await agent.chat([*before, user("right")])
        shown = (await penstock(shared_server, "show", "math", agent.sid)).stdout.splitlines()
        assert [line.partition(";")[0] for line in shown[:3]] == ["turn 1", "├ turn 2", "└ turn 3"]
        assert [line.partition(",")[0] for line in shown[3:]] == [
            "row 1: turns 1-2", "row 2: turns 1-3",
        ]  # fmt: skip
        about = json.loads(
            (await penstock(shared_server, "show", "math", agent.sid, "--json", "--tokens")).stdout
        )
        first, second = about["rows"]
        log = here.engine.log
        assert first["trained"] == len(log[0].sampled) + len(log[1].sampled)
        assert second["trained"] == len(log[2].sampled)
        assert second["ids"] == [*log[2].prompt, *log[2].sampled]
        painted = (await penstock(shared_server, "show", "math", agent.sid, "--tokens")).stdout
        assert " ".join(map(str, log[2].prompt)) in painted.replace("\n", " ")
        unknown = await penstock(shared_server, "show", "math", "none")
        assert unknown.returncode == 1
        assert "has no open session 'none'" in unknown.stderr
        await here.finalize(agent)
        final = await penstock(shared_server, "show", "math", agent.sid)
        assert (final.returncode, final.stdout) == (1, "")
        assert f"has no open session {agent.sid!r}" in final.stderr
        looked = await here.http.get(f"/tasks/math/sessions/{agent.sid}")
        assert (looked.status_code, looked.json()["data"]["state"]) == (409, "final")
