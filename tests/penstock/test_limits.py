"""`penstock limits`: an operator's view of the gates, and hand on them.

Each test has a gate of its own name: a process remembers its gates over an emptied Redis.
"""

import contextlib
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest

import ground
from limiter import PermitLost, TokenBucket
from limiter import engine as engines
from tests.harness import commands
from tests.limiter.in_flight import settled_sync


@pytest.fixture
def limits(real_redis, shared_server):
    """Runs `penstock limits …` on the server of this test."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return commands.run(["limits", *arguments, "--redis-url", shared_server.url])

    return run


def test_a_redis_without_gates_says_so_on_stderr(limits) -> None:
    result = limits("ls")
    assert (result.returncode, result.stdout) == (0, "")
    assert "no gate" in result.stderr
    assert json.loads(limits("ls", "--json").stdout) == []


def test_a_gate_in_use_is_listed_with_who_is_in(limits, real_redis) -> None:
    gate = TokenBucket(real_redis, "listed", limit=3)
    with gate:
        (listed,) = json.loads(limits("ls", "--json").stdout)
        table = limits("ls").stdout
    assert (listed["name"], listed["limit"], listed["in_flight"]) == ("listed", 3, 1)
    assert table.splitlines()[1].split() == ["listed", "3", "1", "0", "1", "open"]


@pytest.mark.parametrize("refused", [
    ["--gate-limit", "5", "--passing", "-1"], ["--adapt", "--min", "0", "--max", "10"],
    ["--gate-limit", "5", "--min", "2"], ["--gate-limit", "5", "--max", "9"],
    ["--adapt", "--max", "9", "--burst", "3"], ["--gate-limit", "5", "--burst", "3"],
    ["--adapt", "--max", "9", "--amount", "requests=8"],
])  # fmt: skip
def test_terms_that_are_refused_leave_no_gate_behind(limits, refused) -> None:
    result = limits("set", "new", *refused)
    assert result.returncode == 2, result.stdout
    assert json.loads(limits("ls", "--json").stdout) == []


def test_large_figures_are_shown_with_all_their_digits(limits) -> None:
    terms = ("--gate-limit", "1234567", "--rate", "7654321", "--burst", "3456789")
    said = limits("set", "big", *terms).stdout
    assert "limit 1234567, rate 7654321, burst 3456789;" in said
    amounts = ("--amount", "requests=7", "--amount", "tokens=2345678")
    assert "tokens 2345678/s;" in limits("set", "tokens", *amounts).stdout
    of_amounts_alone = limits("set", "alone", "--amount", "tokens=2345678").stdout
    assert of_amounts_alone.startswith("alone: open, tokens 2345678/s; 0 in flight")
    assert {"1234567", "7654321", "3456789", "2345678"} <= set(limits("ls").stdout.split())
    said = limits("set", "wide", "--adapt", "--max", "2000000").stdout
    assert "1 to 2000000" in said
    assert "20/2000000" in limits("ls").stdout


def test_a_gate_that_adapts_is_made_with_its_amounts(limits) -> None:
    made = limits("set", "new", "--adapt", "--max", "9", "--amount", "tokens=5")
    assert "tokens 5/s" in made.stderr + made.stdout, made


def test_a_gate_whose_hash_was_deleted_is_listed_no_more(limits, real_redis) -> None:
    for name in ("kept", "deleted"):
        with TokenBucket(real_redis, name, limit=3):
            pass
    engines.stop_all()  # else a heartbeat makes it anew
    real_redis.delete("penstock:gate:{deleted}")
    listed = limits("ls", "--json")
    assert [gate["name"] for gate in json.loads(listed.stdout or "[]")] == ["kept"], listed.stderr
    assert "there are kept (" in limits("pause", "deleted").stderr


def test_a_gate_that_cannot_be_read_is_named_after_those_that_can(limits, real_redis) -> None:
    for name in ("readable", "spoiled", "other-type"):
        with TokenBucket(real_redis, name, limit=3):
            pass
    engines.stop_all()
    real_redis.hset("penstock:gate:{spoiled}", "limit", "64x")
    real_redis.delete("penstock:gate:{other-type}")
    real_redis.set("penstock:gate:{other-type}", "not a gate's")
    listed = limits("ls", "--json")
    assert [gate["name"] for gate in json.loads(listed.stdout)] == ["readable"]
    assert listed.returncode == 1
    other_type, spoiled = listed.stderr.splitlines()
    assert "WRONGTYPE" in other_type
    assert "penstock limits set spoiled --gate-limit N" in spoiled
    assert limits("set", "spoiled", "--gate-limit", "3").returncode == 0
    assert other_type.endswith("penstock limits rm other-type --force")
    assert limits("rm", "other-type", "--force").returncode == 0
    listed = limits("ls")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [line.split()[0] for line in listed.stdout.splitlines()[1:]] == ["readable", "spoiled"]


def test_the_shares_of_a_gate_are_shown_and_weighed(limits, real_redis) -> None:
    def shares_of(gate: str) -> list[dict[str, Any]]:
        return json.loads(limits("share", gate, "--json").stdout)["shares"]

    gate = TokenBucket(real_redis, "shared", limit=1)
    held = gate.sync.acquire()
    assert shares_of("shared") == []
    shown = limits("share", "shared", "training=3", "*=2").stdout
    assert [line.split() for line in shown.splitlines()[1:]] == [["training", "0", "3"], ["*", "2"]]
    with ThreadPoolExecutor(2) as pool:
        waiters = [
            pool.submit(gate.sync.acquire, share=share, timeout=100)
            for share in ("training", "eval")
        ]
        settled_sync(gate, waiting=2)
        said = limits("set", "shared", "--gate-limit", "1").stdout
        waiting = {one["name"]: one["waiting"] for one in shares_of("shared")}
        held.release()
        for waiter in as_completed(waiters):
            waiter.result().release()
    assert "2 waiting (2 shares)" in said
    assert waiting == {"training": 1, "eval": 1}
    refused = limits("share", "shared", "training=-1")
    assert (refused.returncode, "0.001 to 1000" in refused.stderr) == (2, True)
    assert limits("share", "nowhere").returncode == 1


def test_a_change_holds_at_once_for_a_process_that_has_the_gate_open(limits, real_redis) -> None:
    gate = TokenBucket(real_redis, "changed", limit=1)
    with gate:
        assert not gate.sync.try_acquire()
        assert limits("set", "changed", "--limit", "2").returncode == 0
        second = gate.sync.try_acquire()
        assert second
        second.release()


def test_a_paused_gate_grants_nothing_until_it_is_resumed(limits, real_redis) -> None:
    gate = TokenBucket(real_redis, "paused", limit=1)
    with gate:
        pass
    assert "paused: paused, limit 1" in limits("pause", "paused").stdout
    assert not gate.sync.try_acquire()
    assert "paused: open, limit 1" in limits("resume", "paused").stdout
    assert gate.sync.try_acquire()


def test_a_gate_that_nobody_made_is_refused_with_those_that_there_are(limits, real_redis) -> None:
    with TokenBucket(real_redis, "made", limit=1):
        result = limits("pause", "mad")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("penstock: ")
    assert "made" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "made"),
        ("set", "made", "--gate-limit", "0"),
        ("set", "a b", "--gate-limit", "1"),
        ("set", "made", "--adapt", "--max", "inf"),
        ("set", "made", "--adapt", "--max", "nan"),
        ("set", "made", "--rate", "nan"),
    ],
)
def test_what_cannot_work_is_refused(limits, arguments: tuple[str, ...]) -> None:
    result = limits(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_a_rate_that_is_given_twice_is_refused_also_of_a_gate_that_is_there(limits) -> None:
    assert limits("set", "made", "--rate", "3").returncode == 0
    refused = limits("set", "made", "--rate", "4", "--amount", "requests=5")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "give one of them" in refused.stderr
    assert json.loads(limits("ls", "--json").stdout)[0]["rate"] == 3


def test_a_gate_that_nobody_uses_is_removed_with_all_its_keys(limits, real_redis) -> None:
    with TokenBucket(real_redis, "kept", limit=3), TokenBucket(real_redis, "removed", limit=3):
        pass
    engines.stop_all()
    removed = limits("rm", "removed")
    assert (removed.returncode, removed.stdout) == (0, "removed: removed\n")
    assert [
        name for name in real_redis.keys("penstock:gate:{removed}*") if b"inbox" not in name
    ] == []
    assert [gate["name"] for gate in json.loads(limits("ls", "--json").stdout)] == ["kept"]
    again = limits("rm", "removed")
    assert again.returncode == 1
    assert "there are kept (" in again.stderr


def test_what_a_full_redis_cannot_note_is_done_and_said_all_the_same(limits, real_redis) -> None:
    with TokenBucket(real_redis, "freed", limit=3):
        pass
    engines.stop_all()
    real_redis.config_set("maxmemory", 1)
    try:
        removed = limits("rm", "freed")
    finally:
        real_redis.config_set("maxmemory", 0)
    assert (removed.returncode, removed.stdout) == (0, "freed: removed\n")
    assert "remove gate: freed: done, but it could not be noted: " in removed.stderr
    assert not real_redis.exists("penstock:gate:{freed}")


def test_a_gate_in_use_is_removed_only_by_force(limits, real_redis) -> None:
    with TokenBucket(real_redis, "used", limit=3):
        refused = limits("rm", "used")
        assert refused.returncode == 1
        assert "gate 'used' is in use: 1 permits in flight, 0 waiting" in refused.stderr
        assert real_redis.exists("penstock:gate:{used}")
        assert limits("rm", "used", "--force").returncode == 0
        assert not real_redis.sismember("penstock:gates", "used")


def test_one_permit_is_revoked_and_who_did_it_is_noted(limits, real_redis) -> None:
    gate = TokenBucket(real_redis, "revoked", limit=1)
    with pytest.raises(PermitLost), gate as permit:
        (shown,) = json.loads(limits("permits", "revoked", "--json").stdout)
        assert (shown["id"], shown["fence"]) == (permit.id, permit.fence)
        assert permit.id in limits("permits", "revoked").stdout
        revoked = limits("revoke", "revoked", permit.id)
        assert (revoked.returncode, revoked.stderr) == (0, "")
        assert revoked.stdout.startswith(f"revoked: revoked {permit.id} of {shown['process']}, ")
        permit.renew()
    ((_, noted),) = real_redis.xrange("penstock:audit")
    assert (noted[b"what"], noted[b"target"]) == (
        b"revoke permit", f"revoked: {permit.id}".encode(),
    )  # fmt: skip
    again = limits("revoke", "revoked", permit.id)
    assert again.returncode == 1
    assert "has no permit" in again.stderr
    assert limits("permits", "revoked").stderr == "revoked: no permit is in flight\n"


def test_every_change_of_a_gate_is_noted_also_on_a_cluster(redis_cluster) -> None:
    def limits(*arguments: str) -> int:
        return commands.run(["limits", *arguments, "--redis-url", redis_cluster.url]).returncode

    done = [
        limits("set", "llm", "--gate-limit", "3"),
        limits("set", "llm", "--rate", "30", "--burst", "60"),
        limits("share", "llm", "training=3"),
        limits("share", "llm"),
        limits("pause", "llm"),
        limits("resume", "llm"),
        limits("rm", "llm"),
    ]
    assert done == [0] * len(done)
    assert limits("rm", "llm") == 1
    assert limits("set", "senseless", "--gate-limit", "3", "--burst", "-1") == 2  # is not noted
    assert limits("set", "senseless", "--gate-limit", "3") == 0
    assert limits("set", "senseless", "--gate-limit", "-3") == 2
    with contextlib.closing(ground.connect(redis_cluster.url)) as client:
        noted = [change for _, change in client.xrange("penstock:audit")]
    assert [one[b"what"].decode() for one in noted] == [
        "change gate: limit 3",
        "change gate: rate 30.0, burst 60",
        'change gate: weights {"training": 3.0}',
        "change gate: paused true",
        "change gate: paused false",
        "remove gate",
        "remove gate",
        "change gate: limit 3",
    ]
    outcomes = [one[b"outcome"].decode() for one in noted]
    assert outcomes.pop(6).startswith("no gate is called 'llm'")
    assert set(outcomes) == {"done"}
    assert noted[0][b"target"] == b"llm"
    assert all(one[b"who"] and one[b"address"].startswith(b"limits on ") for one in noted)


@pytest.mark.parametrize(("number", "value"), [("--gate-limit", "7"), ("--rate", "3")])
def test_a_new_gate_that_adapts_takes_no_number_beside_its_bounds(limits, number, value) -> None:
    refused = limits("set", "finds", "--adapt", "--max", "64", number, value)
    assert refused.returncode == 2
    assert f"{number}: a gate that adapts finds its own" in refused.stderr
    assert "give --max" not in refused.stderr
