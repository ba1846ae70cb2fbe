"""A connection that sends many commands at once and reads their replies.

Below redis-py's pipeline, whose bookkeeping costs more than our scripts do. An
error that is an answer comes back as a value; one that may pass is raised.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

import redis
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,
)

from ground import connect
from ground.lua import Command, Script
from ground.redis.url import RedisTarget

try:
    from hiredis import pack_command as _pack
except ImportError:  # it is an extra; redis-py packs as well, only slower
    _pack = None  # type: ignore[assignment]

log = logging.getLogger("penstock.limiter")

# The next attempt may not meet these. Every other error is the callers' answer.
PASSING = (
    ConnectionError, TimeoutError, OSError, BusyLoadingError, ClusterDownError, MasterDownError,
    ReadOnlyError, OutOfMemoryError, redis.exceptions.RedisClusterException,
)  # fmt: skip
# The same errors if a script met them (Redis 6.2 wraps them) or redis-py has no class for them.
_PASSING_WORDS = re.compile(r"\b(READONLY|OOM|MISCONF|NOREPLICAS|BUSY) ")
FINAL = (AuthenticationError, AuthorizationError)


class Connection:
    """A connection to a Redis; on a Cluster, one to each node."""

    def __init__(self, target: RedisTarget, timeout: float, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        self._client: Any = connect(target, timeout=timeout)
        self._connection: Any = None
        try:
            if not isinstance(self._client, redis.RedisCluster):
                self._connection = self._client.connection_pool.get_connection()
            # All at once: a script that is unknown among others that are known would be run
            # after them, a release after the acquire that it makes room for.
            if scripts:
                self._send([("SCRIPT", "LOAD", script.source) for script in scripts.values()])
        except BaseException:
            self.close()  # else connections to Sentinels stay open until they are garbage
            raise

    def converse(self, commands: list[Command]) -> list[Any]:
        """The reply to each command, or the error that is its answer."""
        replies = self.replies(commands)
        for reply in replies:
            raise_if_passing(reply)
        return replies

    def replies(self, commands: list[Command]) -> list[Any]:
        """The reply to each command, or its error, be it one that may pass."""
        replies = self._send(commands)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            whole = [self._with_source(commands[i]) for i in unknown]
            for i, reply in zip(unknown, self._send(whole), strict=True):
                replies[i] = reply
        return replies

    def _send(self, commands: list[Command]) -> list[Any]:
        connection = self._connection
        if connection is None:
            return self._ask_nodes(commands)
        connection.send_packed_command(packed(connection, commands))
        return [_read(connection) for _ in commands]

    @property
    def socket(self) -> Any:
        """The raw socket (single server only), which a loop's connection takes over."""
        return self._connection._sock

    def close(self) -> None:
        try:
            if self._connection is not None:
                self._connection.disconnect()
            self._client.close()
        except (RedisError, OSError):
            log.debug("closing a broken connection failed", exc_info=True)

    def _with_source(self, command: Command) -> Command:
        return ("EVAL", self._scripts[command[1]].source, *command[2:])

    def _ask_nodes(self, commands: list[Command]) -> list[Any]:
        """After an error that may pass no more is sent: that error is the reply to the rest."""
        replies: list[Any] = []
        for command in commands:
            refused = replies and is_passing(replies[-1])
            replies.append(replies[-1] if refused else self._ask_node(command))
        return replies

    def _ask_node(self, command: Command) -> Any:
        try:
            return self._client.execute_command(*command)
        except ResponseError as refusal:
            return refusal


class LastingConnection:
    """A connection that is opened when something is said, and again after it was closed or its
    timeout was changed."""

    def __init__(self, target: RedisTarget, timeout: float, scripts: Mapping[str, Script]) -> None:
        self.timeout = timeout
        self._target = target
        self._scripts = scripts
        self._opened: Connection | None = None
        self._opened_with = timeout

    @property
    def open(self) -> bool:
        return self._opened is not None

    def connect(self) -> Connection:
        """The connection, opened if it is not."""
        if self._opened_with != self.timeout:
            self.close()
        if self._opened is None:
            self._opened_with = self.timeout
            self._opened = Connection(self._target, self._opened_with, self._scripts)
        return self._opened

    def converse(self, commands: list[Command]) -> list[Any]:
        return self.connect().converse(commands)

    def replies(self, commands: list[Command]) -> list[Any]:
        return self.connect().replies(commands)

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def raise_if_passing(reply: Any) -> None:
    if is_passing(reply):
        raise reply if isinstance(reply, PASSING) else ConnectionError(str(reply))


def is_passing(reply: Any) -> bool:
    """Whether a reply is an error that the next attempt, on a new connection, may not meet."""
    return isinstance(reply, PASSING) or (
        isinstance(reply, ResponseError) and bool(_PASSING_WORDS.search(str(reply)))
    )


def is_refused(failure: Any) -> bool:
    """Whether Redis answered, with an error that the next attempt would meet again."""
    answered = isinstance(failure, ResponseError) and not is_passing(failure)
    return answered or isinstance(failure, FINAL)


def trouble(failure: BaseException, target: RedisTarget | None = None) -> str:
    """What a log says of it."""
    redis = f"Redis at {target}" if target else "Redis"
    if is_refused(failure):
        return f"{redis} refused: {failure}"
    return f"{redis} does not answer: {failure}"


def is_full(reply: Any) -> bool:
    """Whether a Redis at `maxmemory` refused it. It answers, and takes what needs no memory."""
    return isinstance(reply, OutOfMemoryError) or (
        isinstance(reply, ResponseError) and "OOM " in str(reply)
    )


def packed(connection: Any, commands: list[Command]) -> list[bytes]:
    """The bytes of some commands, for redis-py's connection to send in one write."""
    if _pack is None:
        return list(connection.pack_commands(commands))
    return [b"".join(map(_pack, commands))]


def _read(connection: Any) -> Any:
    try:
        return connection.read_response()
    except ResponseError as refusal:
        return refusal
