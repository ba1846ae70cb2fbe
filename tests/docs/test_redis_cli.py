"""The stand-in prints what redis-cli prints."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import redis_cli

COMMANDS = [
    ["SET", "text", 'a "b" \\ \n\t\x01 é'],
    ["GET", "text"],
    ["GET", "absent"],
    ["RPUSH", "list", *"abcdefghijkl"],
    ["LRANGE", "list", "0", "-1"],
    ["LRANGE", "absent", "0", "-1"],
    ["ZADD", "set", "1", "one", "2.5", "two"],
    ["ZRANGE", "set", "0", "-1", "WITHSCORES"],
    ["HSET", "hash", "field", "value"],
    ["HGETALL", "hash"],
    ["XADD", "stream", "1-1", "field", "value", "more", "values"],
    ["XRANGE", "stream", "-", "+"],
    ["LRANGE", "hash", "0", "-1"],
    ["EVAL", "return {1,{2,{'x',false}},{}}", "0"],
]


# The wheel that brings the oldest Redis for the tests brings one beside the interpreter.
REDIS_CLI = shutil.which("redis-cli") or shutil.which("redis-cli", path=Path(sys.executable).parent)


@pytest.mark.skipif(not REDIS_CLI, reason="no redis-cli to compare with")
def test_every_kind_of_reply_is_printed_as_redis_cli_prints_it(
    shared_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    for command in COMMANDS:
        first, repeated = _both(shared_server, command)
        assert repeated == first, command


def _both(server, command: list[str]) -> tuple[str, str]:
    real = subprocess.run(
        [REDIS_CLI, "-u", server.url, "--no-raw", *command],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.rstrip("\n")
    if command[0] in ("RPUSH", "ZADD", "HSET", "XADD"):
        server.ask("DEL", command[1])
    return real, redis_cli.main(command)


def test_a_nested_reply_is_indented_under_its_number() -> None:
    assert redis_cli.shown([1, [b"a", None], []]) == (
        '1) (integer) 1\n2) 1) "a"\n   2) (nil)\n3) (empty array)'
    )
