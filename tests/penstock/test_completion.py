"""What the shell offers: names from Redis; nothing, and no message, if it is away."""

import os
import subprocess

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from limiter import TokenBucket
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, free_port, until
from tests.penstock.commands import clean, run


@pytest.fixture
def filled(shared_server: PrivateRedis, real_redis: ground.Client) -> str:
    """The URL of a Redis with one of each."""
    real_redis.sadd("rq:queues", "rq:queue:code", "rq:queue:\x1b[2J")
    TokenBucket(real_redis, "rewards", limit=4).sync.configure(limit=4)
    real_redis.zadd("penstock:sandbox:{default}:leases", {"box-1": 1})
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync
    buffer.write({"instance_id": "slow", "uid": "0", "messages": []})
    buffer.close()
    return shared_server.url


def offered(words: str, url: str) -> tuple[str, str]:
    """What Click's completion prints in bash, and what it says on stderr."""
    env = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": f"penstock {words}",
           "COMP_CWORD": str(1 + len(words.split(" ")) - 1), "PENSTOCK_REDIS_URL": url}  # fmt: skip
    found = run(**env)
    return found.stdout.rstrip("\n"), found.stderr


@pytest.mark.parametrize(("words", "name"), [
    ("limits set ", "rewards"),
    ("queues share ", "code"),
    ("groups ls --task ", "math"),
    ("groups show ", "slow"),
    ("sandbox kill ", "box-1"),
    ("worker --gate ", "rewards"),
])  # fmt: skip
def test_names_are_offered(filled: str, words: str, name: str) -> None:
    # What Redis does not say within a second is not offered: asked again, it is.
    until(lambda: offered(words, filled) == (f"plain,{name}", ""), f"{name} is offered", within=100)
    until(lambda: offered(f"{words}x", filled)[0] == "", "no other name is", within=100)


def test_a_redis_that_is_away_is_not_waited_for_and_not_spoken_of() -> None:
    assert offered("limits set ", f"redis://127.0.0.1:{free_port()}") == ("", "")
    assert offered("limits set ", "no url at all") == ("", "")


def test_bash_itself_offers_them(filled: str) -> None:
    script = """
        eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"
        COMP_WORDS=(penstock limits set re); COMP_CWORD=3
        _penstock_completion penstock
        echo "${COMPREPLY[@]}"
    """
    path = f"{PENSTOCK.parent}{os.pathsep}{os.environ['PATH']}"
    env = clean() | {"PATH": path, "PENSTOCK_REDIS_URL": filled}

    def said() -> str:
        asked = ["bash", "-c", script]
        return subprocess.run(asked, env=env, capture_output=True, text=True).stdout

    until(lambda: said() == "rewards\n", "bash offers the gate", within=100)
