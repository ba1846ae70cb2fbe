"""What the rooms stand on: settings, connections, the embedded server, Lua, logs.

What needs redis-py or pydantic is imported when it is first named: the hub of a machine's
sandboxes and the help of the command need no Redis, and a gate needs no settings.
"""

from typing import TYPE_CHECKING

from ground.errors import (
    ExtraMissing,
    PenstockError,
    RedisError,
    RedisUnavailable,
    RedisUnfit,
    SettingError,
    VersionError,
)
from ground.keys import check_name, in_run, new_owner, tagged
from ground.lazy import lazily as _lazily
from ground.logs import configure_logging, correlated, correlation_id, visible
from ground.redis.url import RedisTarget, parse_redis_url
from ground.tasks import cancellations, heed_cancellation

if TYPE_CHECKING:
    from ground.lua import Script, as_text, chunks, fields_of, load_script, text_fields
    from ground.redis.check import ServerFacts, open_checked, open_plainly, read_facts, require_fit
    from ground.redis.connect import (
        AnyClient,
        AnyRedis,
        AsyncClient,
        Client,
        connect,
        connect_async,
        target_of,
    )
    from ground.schema import Versioned
    from ground.server.binary import bundled_server, find_server, server_of
    from ground.server.server import EmbeddedServer, make_private, running_server, running_url
    from ground.settings import GroundSettings, HttpSettings, Settings, load_named, redis_url

__all__ = [
    "AnyClient",
    "AnyRedis",
    "AsyncClient",
    "Client",
    "EmbeddedServer",
    "ExtraMissing",
    "GroundSettings",
    "HttpSettings",
    "PenstockError",
    "RedisError",
    "RedisTarget",
    "RedisUnavailable",
    "RedisUnfit",
    "Script",
    "ServerFacts",
    "SettingError",
    "Settings",
    "VersionError",
    "Versioned",
    "as_text",
    "bundled_server",
    "cancellations",
    "check_name",
    "chunks",
    "configure_logging",
    "connect",
    "connect_async",
    "correlated",
    "correlation_id",
    "fields_of",
    "find_server",
    "heed_cancellation",
    "in_run",
    "load_named",
    "load_script",
    "make_private",
    "new_owner",
    "open_checked",
    "open_plainly",
    "parse_redis_url",
    "read_facts",
    "redis_url",
    "require_fit",
    "running_server",
    "running_url",
    "server_of",
    "tagged",
    "target_of",
    "text_fields",
    "visible",
]


_LAZY = {
    "Script": "ground.lua",
    "as_text": "ground.lua",
    "chunks": "ground.lua",
    "fields_of": "ground.lua",
    "load_script": "ground.lua",
    "text_fields": "ground.lua",
    "ServerFacts": "ground.redis.check",
    "open_checked": "ground.redis.check",
    "open_plainly": "ground.redis.check",
    "read_facts": "ground.redis.check",
    "require_fit": "ground.redis.check",
    "AnyClient": "ground.redis.connect",
    "AnyRedis": "ground.redis.connect",
    "AsyncClient": "ground.redis.connect",
    "Client": "ground.redis.connect",
    "connect": "ground.redis.connect",
    "connect_async": "ground.redis.connect",
    "target_of": "ground.redis.connect",
    "Versioned": "ground.schema",
    "bundled_server": "ground.server.binary",
    "find_server": "ground.server.binary",
    "server_of": "ground.server.binary",
    "EmbeddedServer": "ground.server.server",
    "make_private": "ground.server.server",
    "running_server": "ground.server.server",
    "running_url": "ground.server.server",
    "GroundSettings": "ground.settings",
    "HttpSettings": "ground.settings",
    "Settings": "ground.settings",
    "load_named": "ground.settings",
    "redis_url": "ground.settings",
}

__getattr__ = _lazily(__name__, _LAZY)
