"""The Redis of `penstock up`: the one that is named, or one of its own that is kept running."""

from collections.abc import Callable

from ground import EmbeddedServer
from ground.redis.check import open_checked
from ground.redis.url import parse_redis_url
from ground.settings import GroundSettings


class Redis:
    """The Redis of `penstock up`. `url` is where it is, also after it was started again."""

    name = "redis"

    def __init__(self, settings: GroundSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._server: EmbeddedServer | None = None
        self._state = "starting"
        self.url = ""

    def start(self) -> None:
        """Start it; `SettingError` or `RedisError` if there is none fit to use."""
        settings = self._settings
        if settings.redis_url is not None:
            self.url = settings.redis_url.get_secret_value()
            open_checked(parse_redis_url(self.url), timeout=settings.redis_timeout).close()
        else:
            self._server = EmbeddedServer(
                settings.data_dir, port=settings.redis_port, binary=settings.redis_server,
                say=self._say,
            )  # fmt: skip
            open_checked(self._server.target).close()
            self.url = self._server.url
        self._state = "up"

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self._state = "ended"

    @property
    def state(self) -> str:
        return "restarting" if self._server is not None and self._server.restarting else self._state

    @property
    def restarts(self) -> int:
        return self._server.restarts if self._server is not None else 0

    @property
    def shown(self) -> str:
        return str(parse_redis_url(self.url))
