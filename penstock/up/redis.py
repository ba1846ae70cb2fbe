"""The Redis of `penstock up`: the one that is named, or one of its own that it keeps running."""

import asyncio
from collections.abc import Awaitable, Callable

from ground import EmbeddedServer, GroundSettings, open_checked, parse_redis_url

_LOOK_EVERY = 1.0


class Redis:
    """`url` is where it is; one that was started again is elsewhere if its port was taken."""

    name = "redis"

    def __init__(self, settings: GroundSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._server: EmbeddedServer | None = None
        self.restarts = 0
        self.state = "starting"
        self.url = ""

    def start(self) -> None:
        """`SettingError` or `RedisError` where there is none fit to use."""
        settings = self._settings
        if settings.redis_url is not None:
            self.url = settings.redis_url.get_secret_value()
            open_checked(parse_redis_url(self.url), timeout=settings.redis_timeout).close()
        else:
            self._server = EmbeddedServer(
                settings.data_dir, port=settings.redis_port, binary=settings.redis_server
            )
            open_checked(self._server.target).close()
            self.url = self._server.url
        self.state = "up"

    async def keep(self, moved: Callable[[], Awaitable[None]]) -> None:
        """Start our own again when it has died, and call `moved` then."""
        if self._server is None:
            await asyncio.Event().wait()  # somebody else keeps it
        while (server := self._server) is not None:
            await asyncio.sleep(_LOOK_EVERY)
            if await asyncio.to_thread(lambda: server.alive):
                continue
            self.state, self.restarts = "restarting", self.restarts + 1
            self._say("redis ended; it is started again with its data, and all others after it")
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(self.start)
            await moved()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        self.state = "ended"

    @property
    def shown(self) -> str:
        return str(parse_redis_url(self.url))
