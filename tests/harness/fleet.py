"""Several servers that make up one Redis: started, healed and ended together."""

from collections.abc import Sequence
from typing import Self

from ground.redis.url import RedisTarget, parse_redis_url
from tests.harness.servers import PrivateRedis


class Fleet:
    """What `Cluster` and `SentinelPair` have in common."""

    @property
    def servers(self) -> Sequence[PrivateRedis]:
        """All of them, in the order of their start."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        raise NotImplementedError

    @property
    def target(self) -> RedisTarget:
        return parse_redis_url(self.url)

    def start(self) -> Self:
        """Start them and wait until they serve as one; if that fails, none is left."""
        try:
            self._put_together()
        except BaseException:
            self.stop()
            raise
        return self

    def revive(self) -> None:
        """Start again what a test has killed, and thaw what it has frozen."""
        for server in self.servers:
            if not server.running:
                server.start()
            server.thaw()

    def stop(self) -> None:
        for server in reversed(self.servers):
            server.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _put_together(self) -> None:
        raise NotImplementedError
