"""Clients for a Redis, opened from one description, sync or async.

They never repeat a command by themselves: a reply that got lost must not enqueue
twice. Who repeats does so knowingly, with idempotent scripts. Replies are bytes, in
RESP2's shapes whatever the version of redis-py.
"""

from typing import Any, cast

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from ground.errors import PenstockError, SettingError
from ground.redis.url import RedisTarget, parse_redis_url

Client = redis.Redis | redis.RedisCluster
AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster
AnyClient = Client | AsyncClient
AnyRedis = AnyClient | RedisTarget | str
"""A Redis as callers name it: a client of theirs, real or fake; a description; a URL."""

UNWELL = (PenstockError, RedisError, OSError)
"""What a command of somebody's raises if Redis, or what leads to it, is not well."""

TIMEOUT = 5.0
# What of a client's connection settings describes the server, not one client's habits.
_CARRIED = {
    "username", "password", "credential_provider",
    "ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_certfile", "ssl_keyfile", "ssl_password",
    "ssl_cert_reqs", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers",
    "ssl_include_verify_flags", "ssl_exclude_verify_flags",
}  # fmt: skip


def connect(target: RedisTarget | str, *, timeout: float | None = TIMEOUT) -> Client:
    """A sync client. It connects at its first command; that of a Cluster, here."""
    target = target_of(target)
    kwargs = _client_kwargs(target, timeout)
    once = Retry(NoBackoff(), 0)
    match target.kind:
        case "fake":
            import fakeredis

            return fakeredis.FakeRedis(**target.options, db=target.db)
        case "cluster":
            nodes = [redis.cluster.ClusterNode(host, port) for host, port in target.nodes]
            return redis.RedisCluster(startup_nodes=nodes, retry=once, **kwargs)
        case "sentinel":
            sentinel: Any = _Sentinel(  # type: ignore[no-untyped-call]
                list(target.nodes), sentinel_kwargs=_sentinel_kwargs(target, timeout, once)
            )
            return cast(
                redis.Redis,
                sentinel.master_for(
                    target.service, connection_pool_class=_SentinelPool, retry=once,
                    db=target.db, **kwargs,
                ),
            )  # fmt: skip
    return redis.Redis(retry=once, **_address(target), **kwargs)


def connect_async(target: RedisTarget | str, *, timeout: float | None = TIMEOUT) -> AsyncClient:
    """An async client. It connects at its first command, and belongs to one event loop."""
    target = target_of(target)
    kwargs = _client_kwargs(target, timeout)
    once = AsyncRetry(NoBackoff(), 0)
    match target.kind:
        case "fake":
            import fakeredis

            return fakeredis.FakeAsyncRedis(**target.options, db=target.db)
        case "cluster":
            nodes = [redis.asyncio.cluster.ClusterNode(host, port) for host, port in target.nodes]
            return redis.asyncio.RedisCluster(startup_nodes=nodes, retry=once, **kwargs)
        case "sentinel":
            sentinel: Any = _AsyncSentinel(  # type: ignore[no-untyped-call]
                list(target.nodes), sentinel_kwargs=_sentinel_kwargs(target, timeout, once)
            )
            return cast(
                redis.asyncio.Redis,
                sentinel.master_for(
                    target.service, connection_pool_class=_AsyncSentinelPool, retry=once,
                    db=target.db, **kwargs,
                ),
            )  # fmt: skip
    return redis.asyncio.Redis(retry=once, **_address(target), **kwargs)


def first_sentinel(target: RedisTarget, *, timeout: float | None = TIMEOUT) -> redis.Redis:
    """A client of the first Sentinel itself, to learn why it names no primary."""
    host, port = target.nodes[0]
    return redis.Redis(
        host=host, port=port, **_sentinel_kwargs(target, timeout, Retry(NoBackoff(), 0))
    )


def primary_of(target: RedisTarget, timeout: float) -> tuple[str, int]:
    """The address of the primary, as the Sentinels name it."""
    once = Retry(NoBackoff(), 0)
    asked = _Sentinel(list(target.nodes), sentinel_kwargs=_sentinel_kwargs(target, timeout, once))  # type: ignore[no-untyped-call]
    try:
        return asked.discover_master(target.service)
    finally:
        for sentinel in asked.sentinels:
            sentinel.close()


class _Sentinel(redis.Sentinel):
    """If no primary is found, redis-py names each Sentinel's client with all its settings."""

    def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            return cast(tuple[str, int], super().discover_master(service_name))  # type: ignore[no-untyped-call]
        except MasterNotFoundError as problem:
            raise MasterNotFoundError(_without_clients(problem)) from None


class _AsyncSentinel(redis.asyncio.Sentinel):
    """Sentinels asked by an event loop; their errors name no client either."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            return cast(tuple[str, int], await super().discover_master(service_name))
        except AsyncMasterNotFoundError as problem:
            raise AsyncMasterNotFoundError(_without_clients(problem)) from None


def _without_clients(problem: Exception) -> str:
    return str(problem).partition(" : <")[0]


class _SentinelPool(redis.SentinelConnectionPool):
    """This pool closes the connections to the sentinels together with those to the primary."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                sentinel.close()


class _AsyncSentinelPool(redis.asyncio.SentinelConnectionPool):
    """This pool closes the connections to the sentinels together with those to the primary."""

    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for sentinel in self.sentinel_manager.sentinels:
                await sentinel.aclose()


def target_of(given: AnyRedis) -> RedisTarget:
    """The description of a Redis that a caller names in one of several ways."""
    if isinstance(given, RedisTarget):
        return given
    if isinstance(given, str):
        return parse_redis_url(given)
    if isinstance(given, redis.RedisCluster | redis.asyncio.RedisCluster):
        return _cluster_of(given.nodes_manager)
    if not hasattr(given, "connection_pool"):
        found = type(given).__name__
        raise SettingError("redis", f"is a client, a URL or a RedisTarget, not {found}")
    return _of_pool(given.connection_pool)


def _of_pool(pool: Any) -> RedisTarget:
    kwargs: dict[str, Any] = dict(pool.connection_kwargs)
    db, tls = kwargs.get("db") or 0, "SSL" in pool.connection_class.__name__
    node = (kwargs.get("host") or "localhost", int(kwargs.get("port") or 6379))
    if pool.connection_class.__module__.startswith("fakeredis"):
        return RedisTarget("fake", (("fake", 0),), db=db, options=_fake_options(kwargs))
    if manager := getattr(pool, "sentinel_manager", None):
        return _sentinel_of(manager, pool.service_name, db, tls, _carried(kwargs))
    if path := kwargs.get("path"):
        return RedisTarget("single", path=path, db=db, options=_carried(kwargs))
    return RedisTarget("single", (node,), db=db, tls=tls, options=_carried(kwargs))


def _cluster_of(manager: Any) -> RedisTarget:
    kwargs: dict[str, Any] = dict(manager.connection_kwargs)
    nodes = tuple((node.host, int(node.port)) for node in manager.startup_nodes.values())
    # The sync client keeps the flag, the async one the class it chose by it.
    tls = bool(kwargs.get("ssl")) or "SSL" in getattr(
        kwargs.get("connection_class"), "__name__", ""
    )
    return RedisTarget("cluster", nodes, tls=tls, options=_carried(kwargs))


def _sentinel_of(
    manager: Any, service: str, db: int, tls: bool, options: dict[str, Any]
) -> RedisTarget:
    asked = [sentinel.connection_pool.connection_kwargs for sentinel in manager.sentinels]
    nodes = tuple((at["host"], int(at["port"])) for at in asked)
    own = {name: asked[0].get(name) for name in ("username", "password") if asked[0].get(name)}
    return RedisTarget(
        "sentinel", nodes, service=service, db=db, tls=tls, options=options, sentinel_options=own
    )


def _fake_options(kwargs: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in kwargs.items() if k in ("version", "server_type") and v is not None}
    if kwargs.get("lua_modules"):
        kept["lua_modules"] = kwargs["lua_modules"]
    if kwargs.get("server"):
        return kept | {"server": kwargs["server"]}
    # A fake without a server of its own is found again by what it was made with, even None.
    return kept | {"host": kwargs.get("host"), "port": kwargs.get("port")}


def _carried(kwargs: dict[str, Any]) -> dict[str, Any]:
    carried = {k: v for k, v in kwargs.items() if k in _CARRIED and v is not None}
    if kwargs.get("ssl_cert_reqs", "") is None:  # which redis-py takes for this, and not for unset
        carried["ssl_cert_reqs"] = "none"
    return carried


def _address(target: RedisTarget) -> dict[str, Any]:
    if target.path:
        return {"unix_socket_path": target.path, "db": target.db}
    host, port = target.nodes[0]
    return {"host": host, "port": port, "db": target.db}


def _client_kwargs(target: RedisTarget, timeout: float | None) -> dict[str, Any]:
    if target.kind == "fake":
        return {}
    connecting = TIMEOUT if timeout is None else min(timeout, TIMEOUT)
    kwargs = dict(target.options)
    if not target.path:
        kwargs["socket_keepalive"] = True
    if target.tls:
        kwargs["ssl"] = True
    return {
        "socket_timeout": timeout, "socket_connect_timeout": connecting, "protocol": 2, **kwargs
    }  # fmt: skip


def _sentinel_kwargs(target: RedisTarget, timeout: float | None, once: Any) -> dict[str, Any]:
    # Not asked again: the next sentinel is. So a dead one costs one attempt to connect.
    asking = TIMEOUT if timeout is None else timeout
    kwargs: dict[str, Any] = {"socket_timeout": asking, "protocol": 2, "retry": once}
    kwargs.update(target.sentinel_options)
    if target.tls:
        kwargs["ssl"] = True
        kwargs.update({k: v for k, v in target.options.items() if k.startswith("ssl_")})
    return kwargs
