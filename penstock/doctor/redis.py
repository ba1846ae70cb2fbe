"""The Redis that would be used: reached, fit, kept on disk, on time. Or the one we would start."""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redis import RedisCluster
from redis.exceptions import NoPermissionError, ResponseError

from ground import Client, PenstockError, RedisError, SettingError
from ground.redis.check import (
    ServerFacts,
    open_plainly,
    read_facts,
    require_fit,
    require_writes,
    too_few_permissions,
)
from ground.redis.connect import UNWELL
from ground.redis.url import RedisTarget, parse_redis_url
from ground.server.binary import server_of
from ground.server.server import running_server
from ground.settings import GroundSettings
from penstock.doctor.finding import Finding, fail, ok, warn
from penstock.doctor.stored import check_queues

# The newest lines that `make test` has passed on.
TESTED = {"Redis": (7, 0), "Valkey": (9, 1)}
SKEW = 1.0


def check_redis(settings: GroundSettings) -> Iterator[Finding]:
    """Look at the server that is named, or at the one this machine would run."""
    if settings.redis_url is not None:
        named = parse_redis_url(settings.redis_url.get_secret_value())
        yield from check_server(named, timeout=settings.redis_timeout)
        return
    yield from check_embedded(settings)


def fleets_target(settings: GroundSettings) -> RedisTarget | None:
    """The Redis whose fleet is meant: the one named, or the one that runs here."""
    if settings.redis_url is not None:
        return parse_redis_url(settings.redis_url.get_secret_value())
    return running_server(settings.data_dir)


def check_server(target: RedisTarget, *, timeout: float = 5.0) -> Iterator[Finding]:
    try:
        client = open_plainly(target, timeout=timeout)
    except RedisError as trouble:
        yield fail("server", str(trouble))
        return
    try:
        facts = read_facts(client, target)
        yield ok("reached", f"{target}, and scripts run")
        yield _version(facts)
        yield _fitness(facts, target)
        if facts.clustered and target.kind != "cluster":
            return  # it would send each further question elsewhere
        yield _writes(client, target)
        yield _persistence(facts)
        yield _clock(client)
        if target.kind == "cluster":
            yield from _coverage(client)
            yield warn("queues", "RQ cannot keep them on a cluster", "give them one primary")
            return
        yield from check_queues(client)
    except UNWELL as trouble:
        yield trouble_of("server", target, trouble)
    finally:
        client.close()


def trouble_of(about: str, target: RedisTarget, trouble: Exception) -> Finding:
    """The finding on a Redis that broke off while it was looked at, or refused."""
    if isinstance(trouble, NoPermissionError):  # it may run scripts, but not use our keys
        fact, _, remedy = too_few_permissions(trouble).rpartition(". ")
        return fail("permissions", f"{target} {fact}", remedy)
    if isinstance(trouble, PenstockError):
        return fail(about, str(trouble))
    return fail(about, f"{target} broke off, or refused: {trouble}", "read its log, and look again")


def check_embedded(settings: GroundSettings) -> Iterator[Finding]:
    """Say which binary an embedded server would be, its data directory, and the one that runs
    there."""
    try:
        binary = server_of(settings.data_dir, settings.redis_server)
        yield _embedded(binary, settings.data_dir)
    except SettingError as trouble:
        yield fail("embedded", str(trouble))
    try:
        running = running_server(settings.data_dir)
    except SettingError as trouble:
        yield fail("data directory", str(trouble))
        return
    state = "its server is running" if running else "no server is running on it"
    yield ok("data directory", f"{settings.data_dir.absolute()}, {state}")
    if running:
        yield from check_server(running, timeout=settings.redis_timeout)


def _embedded(binary: Path, folder: Path) -> Finding:
    try:
        version = _server_version(binary)
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        remedy = "name another in PENSTOCK_REDIS_SERVER"
        return fail("embedded", f"{binary} cannot be run: {problem}", remedy)
    # From 7.0 on the append-only file is a folder of files; older servers overlook it, and
    # start empty.
    if version.startswith("Redis 6") and (folder / "appendonlydir").exists():
        return fail(
            "embedded",
            f"{version} ({binary}) cannot read what a newer server wrote to {folder}",
            "name the newer server in PENSTOCK_REDIS_SERVER",
        )
    return ok("embedded", f"{version} ({binary})")


def _server_version(binary: Path) -> str:
    """The version that the binary prints, e.g. `Valkey 9.1.0`. Raises `ValueError` if it prints
    none: it is no server, or lacks a library."""
    ran = subprocess.run(  # noqa: S603
        [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=10,
        check=False,
    )  # fmt: skip
    version = re.search(r"v=([\d.]+)", ran.stdout)
    if version is None:
        said = ran.stderr.strip().splitlines()[-1:] or ["it says no version of a server"]
        raise ValueError(said[0][:200])
    software = "Valkey" if "valkey" in ran.stdout.lower() else "Redis"
    return f"{software} {version[1]}"


def _version(facts: ServerFacts) -> Finding:
    if not facts.version:
        return warn(
            "version",
            "the server would not say",
            "give its user the INFO command: ACL SETUSER … +info",
        )
    tested = TESTED[facts.software]
    if facts.version[:2] > tested:
        newest = ".".join(map(str, tested))
        return warn("version", f"{facts.name}, tested up to {newest}", "report what does not work")
    return ok("version", facts.name)


def _fitness(facts: ServerFacts, target: RedisTarget) -> Finding:
    try:
        require_fit(facts, target)
    except RedisError as trouble:
        return fail("settings", str(trouble))
    limit = f"maxmemory {facts.maxmemory / 1e6:,.0f} MB" if facts.maxmemory else "no maxmemory"
    if facts.eviction not in ("", "noeviction"):
        return warn(
            "settings",
            f"maxmemory-policy {facts.eviction}, harmless only while there is {limit}",
            "set maxmemory-policy noeviction",
        )
    return ok("settings", f"{facts.eviction or 'eviction unknown'}, {limit}")


def _writes(client: Client, target: RedisTarget) -> Finding:
    try:
        require_writes(client, target)
    except RedisError as trouble:
        fact, _, remedy = str(trouble).rpartition("; ")
        return fail("writes", fact, remedy)
    return ok("writes", "it takes them")


def _persistence(facts: ServerFacts) -> Finding:
    match facts.persistence:
        case "aof":
            return ok("persistence", "append-only file")
        case "rdb":
            return warn(
                "persistence",
                "snapshots only: a crash loses what came after the last one",
                "set appendonly yes",
            )
        case "none":
            return warn(
                "persistence",
                "none: a restart loses all jobs and groups",
                "set appendonly yes",
            )
    return warn("persistence", "the server would not say", "make sure it keeps an append-only file")


def _coverage(client: Any) -> Iterator[Finding]:
    """Warn of a Cluster in which a node that fails stops the others. A user may not ask."""
    setting = "cluster-require-full-coverage"
    with contextlib.suppress(NoPermissionError, ResponseError):
        said = client.config_get(setting, target_nodes=RedisCluster.PRIMARIES)
        if any(each.get(setting) == "yes" for each in said.values()):
            fact = "a node that fails without a replica stops all the others too"
            yield warn("nodes", fact, f"set {setting} no on every node")


def _clock(client: Client) -> Finding:
    before = time.time()
    seconds, micros = client.time()  # type: ignore[misc,unused-ignore]
    after = time.time()
    skew = seconds + micros / 1e6 - (before + after) / 2
    fact = f"{abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > SKEW + (after - before):
        return warn(
            "clock", fact, "run NTP on both: leases use the server's clock, and RQ this machine's"
        )
    return ok("clock", fact)
