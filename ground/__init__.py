"""All rooms stand on this one: settings, connections, the embedded server, Lua, logs.

What needs redis-py or pydantic is imported when it is first named: the hub of a machine's
sandboxes and the help of the command need no Redis, and a gate needs no settings.
"""

from typing import TYPE_CHECKING

from ground.errors import (
    ExtraMissing,
    PenstockError,
    RedisError,
    RedisFull,
    RedisUnavailable,
    RedisUnfit,
    SettingError,
    VersionError,
)
from ground.lazy import lazily as _lazily
from ground.logs import correlation_id, visible

if TYPE_CHECKING:
    from ground.redis.connect import Client, connect
    from ground.server.server import EmbeddedServer
    from ground.settings import redis_url

__all__ = [
    "Client",
    "EmbeddedServer",
    "ExtraMissing",
    "PenstockError",
    "RedisError",
    "RedisFull",
    "RedisUnavailable",
    "RedisUnfit",
    "SettingError",
    "VersionError",
    "connect",
    "correlation_id",
    "redis_url",
    "visible",
]


_LAZY = {
    "Client": "ground.redis.connect",
    "connect": "ground.redis.connect",
    "EmbeddedServer": "ground.server.server",
    "redis_url": "ground.settings",
}

__getattr__ = _lazily(__name__, _LAZY)
