"""What the rooms stand on: settings, connections, the embedded server, Lua, logs."""

from ground.check_server import ServerFacts, open_checked, open_plainly, read_facts, require_fit
from ground.connect import AnyClient, AsyncClient, Client, connect, connect_async, target_of
from ground.errors import (
    PenstockError,
    RedisError,
    RedisUnavailable,
    RedisUnfit,
    SettingError,
    VersionError,
)
from ground.keys import check_name, in_run, tagged
from ground.logs import configure_logging, correlated, correlation_id
from ground.lua import Script, load_script
from ground.redis_url import RedisTarget, parse_redis_url
from ground.schema import Versioned
from ground.server import EmbeddedServer, bundled_server, find_server, running_server
from ground.settings import GroundSettings, Settings

__all__ = [
    "AnyClient",
    "AsyncClient",
    "Client",
    "EmbeddedServer",
    "GroundSettings",
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
    "bundled_server",
    "check_name",
    "configure_logging",
    "connect",
    "connect_async",
    "correlated",
    "correlation_id",
    "find_server",
    "in_run",
    "load_script",
    "open_checked",
    "open_plainly",
    "parse_redis_url",
    "read_facts",
    "require_fit",
    "running_server",
    "tagged",
    "target_of",
]
