"""The Redis of a command: the one that is named, or else one of its own. It must be fit to use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ground import EmbeddedServer, SettingError
from ground.redis.check import open_checked
from ground.redis.url import SETTING, parse_redis_url
from ground.server.server import running_url
from ground.settings import GroundSettings
from penstock.doctor.packages import require_own_packages


@contextmanager
def running_redis(settings: GroundSettings, *, folder: Path | None = None) -> Iterator[str]:
    """The URL of the Redis that is named, found fit; else of a private one for the block's length.

    A private one keeps its data in `folder`, or in the data directory.
    """
    require_own_packages()
    if settings.redis_url is not None:
        named = settings.redis_url.get_secret_value()
        open_checked(parse_redis_url(named), timeout=settings.redis_timeout).close()
        yield named
        return
    with EmbeddedServer(
        folder or settings.data_dir, port=settings.redis_port, binary=settings.redis_server
    ) as server:
        open_checked(server.target).close()
        yield server.url


@contextmanager
def fleets_redis(settings: GroundSettings) -> Iterator[str]:
    """The URL of the Redis that is named, or that another command runs for this data directory.

    For commands that look at a fleet or change it. One that they started for themselves would be
    empty, and what they change there would change nothing.
    """
    if settings.redis_url is None:
        require_own_packages()
        url = running_url(settings.data_dir)
        if url is None:
            raise SettingError(
                SETTING,
                f"not set, and no Redis runs for {settings.data_dir}: which one is meant? Set it, "
                "or start `penstock up` or `penstock worker` in this folder",
            )
        yield url
        return
    with running_redis(settings) as url:
        yield url


def require_one_primary(settings: GroundSettings) -> None:
    """Refuse a Cluster where queues are needed: RQ's keys span its slots."""
    if settings.redis_url is None:
        return
    named = parse_redis_url(settings.redis_url.get_secret_value())
    if named.kind == "cluster":
        raise SettingError(
            SETTING, f"RQ's queues need one primary, and {named} is a cluster; name another Redis"
        )
