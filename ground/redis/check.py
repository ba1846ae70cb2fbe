"""These checks say whether a Redis is fit to keep Penstock's state, before anything is built on
it."""

import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    RedisClusterException,
    ResponseError,
)
from redis.sentinel import MasterNotFoundError

from ground.errors import RedisError, RedisUnavailable, RedisUnfit
from ground.redis.connect import Client, connect, first_sentinel
from ground.redis.url import SETTING, RedisTarget

OLDEST = (6, 2)
PROBE = "penstock:probe"
_FAILOVER = "During a failover wait some seconds, until another primary is promoted"


@dataclass(frozen=True)
class ServerFacts:
    """The facts that a server reports of itself. Empty or None if it would not say."""

    software: str
    version: tuple[int, ...]
    role: str
    eviction: str
    maxmemory: int
    persistence: str
    run_id: str
    clustered: bool = False

    @property
    def name(self) -> str:
        return f"{self.software} {'.'.join(map(str, self.version))}".strip()


def open_checked(target: RedisTarget, *, setting: str = SETTING, timeout: float = 5.0) -> Client:
    """A sync client of a server that was reached and found fit; else one clear sentence."""
    client = open_plainly(target, setting=setting, timeout=timeout)
    try:
        require_fit(read_facts(client, target, setting=setting), target, setting=setting)
    except BaseException:
        client.close()
        raise
    return client


def open_plainly(target: RedisTarget, *, setting: str = SETTING, timeout: float = 5.0) -> Client:
    """Connect, with a plain error if a Cluster's nodes, which `connect` asks already, do not
    answer."""
    with _plain_errors(target, setting):
        return connect(target, timeout=timeout)


def read_facts(client: Client, target: RedisTarget, *, setting: str = SETTING) -> ServerFacts:
    """Reach the server and read its facts; `RedisUnavailable` or `RedisUnfit` where that fails.

    Of a Cluster, those of one node that answers.
    """
    with _plain_errors(target, setting):
        *others, last = _nodes(client)
        for node in others:
            with suppress(redis.ConnectionError, redis.TimeoutError):
                return _facts_of(node)
        return _facts_of(last)


def _nodes(client: Client) -> list[redis.Redis]:
    if not isinstance(client, redis.RedisCluster):
        return [client]
    return [client.get_redis_connection(node) for node in client.get_primaries()]


def _facts_of(client: redis.Redis) -> ServerFacts:
    client.ping()
    client.eval("return 1", 0)  # all we do is done by scripts: a user must be allowed to
    info = _info(client)
    return _facts(info, _persistence(client, info))


@contextmanager
def _plain_errors(target: RedisTarget, setting: str) -> Iterator[None]:
    try:
        yield
    except (redis.RedisError, RedisClusterException) as failure:
        raise _plain(_root(failure), target, setting) from None


def _root(failure: BaseException) -> BaseException:
    """A Cluster's client wraps what its nodes said."""
    wrapped = isinstance(failure, RedisClusterException) and failure.__cause__
    return _root(wrapped) if wrapped else failure


def _plain(failure: BaseException, target: RedisTarget, setting: str) -> RedisError:
    subject, said = f"{setting}: {target}", _said(failure)
    match failure:
        case AuthenticationError():
            return RedisUnfit(
                f"{subject} refused the user or password: {said}. Write them as "
                "redis://user:password@host, and @ : / in them as %40 %3A %2F"
            )
        case BusyLoadingError():
            return RedisUnavailable(
                f"{subject} is still loading its data from disk; try again when it is done"
            )
        case MasterNotFoundError():
            return _no_primary(target, setting)
        case NoPermissionError():
            return RedisUnfit(f"{subject} {too_few_permissions(failure)}")
        case ResponseError() if said.startswith("unknown command") and "SENTINEL" in said:
            return RedisUnfit(
                f"{subject} names a server that is no Sentinel; name the Sentinels, which listen "
                "on 26379 as a rule, or say redis:// for the server itself"
            )
        case ResponseError() if "DB index" in said:
            return RedisUnfit(
                f"{subject} has no database of that number; end the URL with a lower one, /0"
            )
        case ResponseError() | RedisClusterException():
            return RedisUnfit(f"{subject} does not serve us: {said}")
    if _by_certificate(failure):
        return _untrusted(subject, said)
    there = "a Redis that speaks TLS" if target.tls else "a Redis"
    start = f"tart {there} there, or unset {setting} to use a private one"
    if "max number of clients" in said:
        return RedisUnavailable(
            f"{subject} takes no more connections: {said}. Raise its maxclients, or look for who "
            "holds them: CLIENT LIST"
        )
    hung_up = any(word in said for word in ("reset by peer", "closed by server"))
    if target.kind == "sentinel":
        remedy = _FAILOVER
    elif target.tls and (hung_up or "alert" in said or "EOF" in said):
        yours = "name yours in ssl_certfile=FILE and ssl_keyfile=FILE of the URL"
        remedy = f"If it asks clients for a certificate, {yours}; else s{start}"
    elif hung_up and not target.tls:
        remedy = f"If the port speaks TLS, write rediss://; else s{start}"
    else:
        remedy = f"S{start}"
    return RedisUnavailable(f"{subject} does not answer: {said}. {remedy}")


def too_few_permissions(refusal: NoPermissionError) -> str:
    """The message for a refused command says what Redis refused, and what the user needs. Redis
    names no key."""
    return (
        f"gives its user too few permissions: {_said(refusal)}. It needs scripts and the keys "
        "penstock:* and rq:*: docs/guide/redis.md#give-penstock-a-user"
    )


def _untrusted(subject: str, said: str) -> RedisUnavailable:
    return RedisUnavailable(
        f"{subject} has a certificate that is not trusted here: {said}. Name its authority in "
        "ssl_ca_certs=FILE of the URL, and use the host name that the certificate has"
    )


def _no_primary(target: RedisTarget, setting: str) -> RedisError:
    """redis-py does not say why its Sentinels named none, so the first one is asked."""
    host, port = target.nodes[0]
    subject = f"{setting}: Sentinel {host}:{port}"
    with closing(first_sentinel(target)) as sentinel:
        try:
            sentinel.ping()
        except AuthenticationError as failure:
            return RedisUnfit(
                f"{subject} refused the user or password: {_said(failure)}. Write them as the "
                "URL's options sentinel_username and sentinel_password"
            )
        except redis.RedisError as failure:
            if _by_certificate(failure):
                return _untrusted(subject, _said(failure))
    return RedisUnavailable(
        f"{setting}: {target} does not answer: no Sentinel is there, or none knows that primary. "
        f"{_FAILOVER}"
    )


def _said(failure: BaseException) -> str:
    return str(failure).rstrip(". ")


def _by_certificate(failure: BaseException | None) -> bool:
    """redis-py wraps errors of TLS, and once more when it has tried again."""
    if failure is None or isinstance(failure, ssl.SSLCertVerificationError):
        return failure is not None
    return _by_certificate(failure.__cause__ or failure.__context__)


def require_fit(facts: ServerFacts, target: RedisTarget, *, setting: str = SETTING) -> None:
    """Raise `RedisUnfit` if state kept on this server could be lost or refused."""
    if facts.version and facts.version < OLDEST:
        raise RedisUnfit(
            f"{setting}: {target} runs {facts.name}; Penstock needs Redis 6.2 or newer, or Valkey"
        )
    if facts.role in ("slave", "replica"):
        raise RedisUnfit(
            f"{setting}: {target} is a read-only replica; name the primary, or use redis+sentinel://"
        )
    if facts.clustered and target.kind != "cluster":
        raise RedisUnfit(
            f"{setting}: {target} is a node of a Redis Cluster. Queues need one primary that is "
            "in none; gates, buffer and session sandboxes take it as redis+cluster://"
        )
    if facts.maxmemory and facts.eviction not in ("", "noeviction"):
        raise RedisUnfit(
            f"{setting}: {target} evicts keys when memory is short (maxmemory-policy "
            f"{facts.eviction}), which would lose jobs and groups; set maxmemory-policy noeviction"
        )


def require_writes(client: Client, target: RedisTarget, *, setting: str = SETTING) -> None:
    """Raise `RedisUnfit` if the server takes no writes: it is full, or cannot save to its disk."""
    try:
        client.set(PROBE, 1, ex=10)
    except NoPermissionError:
        raise  # which says nothing of the server
    except ResponseError as refusal:
        full = "raise its maxmemory, or make room: docs/guide/full-redis.md"
        remedy = full if "OOM" in str(refusal) else "see the server's log"
        raise RedisUnfit(f"{setting}: {target} takes no writes: {refusal}; {remedy}") from None


def _info(client: redis.Redis) -> Mapping[str, Any]:
    try:
        info: Any = client.info()
    except (NoPermissionError, ResponseError):
        # fakeredis and locked-down services have no INFO: nothing to hold against them.
        return {}
    return dict(info)


def _facts(info: Mapping[str, Any], persistence: str) -> ServerFacts:
    valkey = str(info.get("valkey_version", ""))
    version = valkey or str(info.get("redis_version", ""))
    return ServerFacts(
        software="Valkey" if valkey else "Redis" if version else "",
        version=tuple(int(piece) for piece in re.findall(r"\d+", version)[:3]),
        role=str(info.get("role", "")),
        eviction=str(info.get("maxmemory_policy", "")),
        maxmemory=int(info.get("maxmemory", 0)),
        persistence=persistence,
        run_id=str(info.get("run_id", "")),
        clustered=bool(info.get("cluster_enabled")),
    )


def _persistence(client: redis.Redis, info: Mapping[str, Any]) -> str:
    """The server's persistence: `aof`, `rdb`, `none`, or empty if the server would not say."""
    if info.get("aof_enabled"):
        return "aof"
    try:
        points: Any = client.config_get("save")
    except (NoPermissionError, ResponseError):
        return ""
    return "rdb" if any(points.values()) else "none"
