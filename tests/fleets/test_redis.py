"""Fleets whose Redis is broken, or is none. Each has one of its own."""

import contextlib
import datetime
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
import trustme

from tests.fleets.surfaces import NO_MONITOR, Fleet, note
from tests.harness.sentinel import SentinelPair
from tests.harness.servers import (
    PrivateRedis,
    fill_disk_of,
    server_that_may_fail_to_save,
)
from tests.harness.tls import tls_front
from tests.penstock.serving import monitor
from tests.worker.scripted_fusion import ScriptedFusion

Start = Callable[..., PrivateRedis]


@contextlib.contextmanager
def watched(url: str) -> Iterator[Fleet]:
    """A fleet with a monitor, while its Redis is still well; a queue was used there."""
    with monitor(url) as page, Fleet(url, page) as fleet:
        fleet.client.sadd("rq:queues", "rq:queue:code")
        yield fleet


def test_no_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Fleet("redis://127.0.0.1:1") as fleet:
        for command in ("status", "top --once"):
            said = fleet.run(*command.split(), PENSTOCK_REDIS_URL="")
            assert (said.returncode, "PENSTOCK_REDIS_URL: not set" in said.stderr) == (2, True)
        shown = fleet.run("doctor", "--quiet", PENSTOCK_REDIS_URL="").stdout
        assert "no Redis is named, and none runs here" in shown
        alert = fleet.alert_without_a_monitor("PENSTOCK_REDIS_URL: not set", PENSTOCK_REDIS_URL="")
    monkeypatch.undo()
    note("no URL", verdict="exit code 2", level="bad", seconds=0, page=NO_MONITOR, alert=alert,
         remedy="PENSTOCK_REDIS_URL: not set", status=True, top=True, doctor=True)  # fmt: skip


def test_an_empty_redis(private_redis: Start) -> None:
    server = private_redis()
    with monitor(server.url) as page, Fleet(server.url, page) as fleet:
        said = fleet.run("status")
        assert (said.returncode, "Nothing has used this Redis yet" in said.stdout) == (3, True)
        top = fleet.run("top", "--once")
        assert (top.returncode, "Nothing has used this Redis yet" in top.stdout) == (3, True)
        fleet.on_the_page(lambda shown: shown.get("summary", {}).get("level") == "unused")
        assert "nothing has used this Redis yet" in fleet.run("doctor", "--quiet").stdout
        fleet.client.sadd("rq:queues", "rq:queue:code")
        fleet.is_well("an empty Redis")
    note("an empty Redis", verdict="unused, exit code 3", level="warn", seconds=0,
         alert="PenstockUnused, 10m", status=True, top=True, page=True, doctor=True,
         remedy="is it the one that is meant?")  # fmt: skip


def test_a_full_redis(private_redis: Start) -> None:
    server = private_redis()
    with watched(server.url) as fleet:
        used = int(fleet.client.info()["used_memory"])
        fleet.client.config_set("maxmemory", used + 2_000_000)
        with contextlib.suppress(redis.exceptions.OutOfMemoryError):
            for n in range(1000):
                fleet.client.set(f"other:{n}", "x" * 10_000)
        name = "a full Redis"
        fleet.names(name, "redis_full", "Redis is full: it uses", "docs/guide/full-redis.md")
        fleet.client.config_set("maxmemory", 0)
        fleet.is_well(name)


def test_a_redis_whose_disk_is_full(tmp_path: Path) -> None:
    failing = server_that_may_fail_to_save(tmp_path / "redis")
    with failing as server, watched(server.url) as fleet:
        fill_disk_of(server)
        name = "a Redis whose disk is full"
        fleet.cannot_be_judged(name, "unable to persist to disk")


def test_a_read_only_replica(private_redis: Start) -> None:
    server, other = private_redis(), private_redis()
    with watched(server.url) as fleet:
        server.ask("REPLICAOF", "127.0.0.1", other.port)
        name = "a read-only replica"
        fleet.cannot_be_judged(name, "is a read-only replica; name the primary")
        server.ask("REPLICAOF", "NO", "ONE")
        fleet.client.sadd("rq:queues", "rq:queue:code")
        fleet.is_well(name)


def test_a_redis_that_evicts(private_redis: Start) -> None:
    with watched(private_redis().url) as fleet:
        fleet.client.config_set("maxmemory", "100mb")
        fleet.client.config_set("maxmemory-policy", "allkeys-lru")
        name = "a Redis that evicts"
        fleet.cannot_be_judged(name, "set maxmemory-policy noeviction")
        fleet.client.config_set("maxmemory-policy", "noeviction")
        fleet.is_well(name)


def test_a_dead_redis(private_redis: Start) -> None:
    server = private_redis()
    with watched(server.url) as fleet:
        server.kill()
        name = "a dead Redis"
        fleet.cannot_be_judged(name, "does not answer")
        server.start()
        fleet.client.sadd("rq:queues", "rq:queue:code")
        fleet.is_well(name)


def test_a_frozen_redis(private_redis: Start) -> None:
    server = private_redis()
    with watched(server.url) as fleet:
        server.freeze()
        name = "a frozen Redis"
        fleet.cannot_be_judged(name, "does not answer")
        server.thaw()
        fleet.is_well(name)


def test_a_wrong_password(private_redis: Start) -> None:
    server = private_redis()
    with watched(server.url) as fleet:
        fleet.client.config_set("requirepass", "s3cret")
        wrong = server.url.replace("redis://", "redis://:wrong@")
        with Fleet(wrong) as other:
            other.cannot_be_judged("a wrong password", "refused the user or password", page=False)


def test_an_expired_certificate(private_redis: Start, tmp_path: Path) -> None:
    server, authority = private_redis(), trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    over = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    certificate = authority.issue_cert("localhost", not_after=over)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with tls_front(server.target, context) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}/ca.pem"
        with Fleet(url) as fleet:
            name = "an expired certificate"
            fleet.cannot_be_judged(name, "certificate has expired", page=False)


def test_a_sentinel_without_quorum(tmp_path: Path) -> None:
    with SentinelPair(tmp_path) as pair:
        pair.sentinels[0].ask("SENTINEL", "SET", "main", "quorum", 2)
        with watched(pair.url) as fleet:
            pair.primary.kill()
            name = "a Sentinel without quorum, and a dead primary"
            fleet.cannot_be_judged(name, "does not answer")
            pair.primary.start()
            fleet.client.sadd("rq:queues", "rq:queue:code")
            fleet.is_well(name)


def test_a_redis_that_lost_its_data(private_redis: Start) -> None:
    with watched(private_redis().url) as fleet, ScriptedFusion() as fusion:
        worker = fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.client.flushall()
        name = "a Redis that lost its data"
        said = "it knew 1 worker no longer"
        fleet.names(name, "data_lost", said, "docs/guide/back-up.md")
        assert "1 worker" in fleet.run("top", "--once").stdout, "it works on, and is known again"
        worker.terminate()
        worker.wait()
        fleet.worker("code", PENSTOCK_SANDBOX_FUSION_URL=fusion.url)
        fleet.is_well(name)


def test_a_redis_without_connections(private_redis: Start) -> None:
    server = private_redis()
    with watched(server.url) as fleet, contextlib.ExitStack() as held:
        for _ in range(60):
            held.enter_context(contextlib.closing(redis.Redis.from_url(server.url))).ping()
        used = int(fleet.client.info()["connected_clients"])
        name = "a Redis that takes no more connections"
        fleet.client.config_set("maxclients", used)
        for command in ("status", "doctor --quiet"):
            ended = fleet.run(*command.split())
            assert "Raise its maxclients" in ended.stdout + ended.stderr, ended
        fleet.client.config_set("maxclients", used + 4)
        fleet.names(name, "connections_short", "connections", "raise its maxclients")
        held.close()
        fleet.is_well(name)
