"""A connection that sends many commands at once and reads their replies.

Below redis-py's pipeline, whose bookkeeping costs more than our scripts do. An
error that is an answer comes back as a value. One that may pass is raised: engine.py tries again.
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

from ground.lua import Command, Script
from ground.redis.connect import connect
from ground.redis.dial import dial
from ground.redis.url import RedisTarget
from ground.redis.wire import Wire

log = logging.getLogger("penstock.limiter")

# The next attempt may not meet these. Every other error is the callers' answer.
PASSING = (
    ConnectionError, TimeoutError, OSError, BusyLoadingError, ClusterDownError, MasterDownError,
    ReadOnlyError, OutOfMemoryError, redis.exceptions.RedisClusterException,
)  # fmt: skip
# The same errors if a script met them (Redis 6.2 wraps them) or redis-py has no class for them.
_PASSING_WORDS = re.compile(r"\b(READONLY|OOM|MISCONF|NOREPLICAS|BUSY) ")
FINAL = (AuthenticationError, AuthorizationError)
_NOT_THIS_ONE = (
    ConnectionError, BusyLoadingError, ClusterDownError, MasterDownError, ReadOnlyError,
)  # fmt: skip


class Connection:
    """A connection to a Redis; to a Cluster, or to a fake, by a client of redis-py."""

    def __init__(self, target: RedisTarget, timeout: float, scripts: Mapping[str, Script]) -> None:
        self._scripts = scripts
        self.timeout = timeout
        self._wire: Wire | None = None
        self._client: Any = None
        if target.kind in ("cluster", "fake"):
            self._client = connect(target, timeout=timeout)
            if target.kind == "fake":
                self._client.response_callbacks.clear()  # replies have the shapes of a server's
        else:
            self._wire = dial(target, timeout, Wire)
        try:
            # All at once: a script that is unknown among others that are known would be run
            # after them, a release after the acquire that it makes room for. Of a Cluster, all
            # nodes would have to answer: each gets a script when it needs it.
            if scripts and target.kind != "cluster":
                self._send([("SCRIPT", "LOAD", script.source) for script in scripts.values()])
        except BaseException:
            self.close()
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
            whole: list[Command] = [
                ("EVAL", self._scripts[commands[i][1]].source, *commands[i][2:]) for i in unknown
            ]
            for i, reply in zip(unknown, self._send(whole), strict=True):
                replies[i] = reply
        return replies

    def _send(self, commands: list[Command]) -> list[Any]:
        if self._wire is None:
            return self._ask_client(commands)
        replies = self._wire.converse(commands, self.timeout)
        for reply in replies:
            if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                raise reply  # the server speaks of the connection, not of the command
        return replies

    def shut(self) -> None:
        """End the connection from any thread; the thread that converses over it sees its end."""
        if self._wire is not None:
            self._wire.shut()

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()
            return
        try:
            self._client.close()
        except (RedisError, OSError):
            log.debug("closing a broken connection failed", exc_info=True)

    def _ask_client(self, commands: list[Command]) -> list[Any]:
        """Ask redis-py's client. After an error that may pass no more is sent: it is the reply to
        the rest."""
        replies: list[Any] = []
        for command in commands:
            refused = replies and is_passing(replies[-1])
            replies.append(replies[-1] if refused else self._asked(command))
        return replies

    def _asked(self, command: Command) -> Any:
        try:
            return self._client.execute_command(*command)
        except NoScriptError:
            return self._asked(("EVAL", self._scripts[command[1]].source, *command[2:]))
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


def asks_for_another(reply: Any) -> bool:
    """Whether a reply is an error of a server that is not, or not yet, the one to ask: it takes a
    new connection."""
    return isinstance(reply, _NOT_THIS_ONE) or (
        isinstance(reply, ResponseError) and "READONLY " in str(reply)
    )


def is_refused(failure: Any) -> bool:
    """Whether Redis answered, with an error that the next attempt would meet again."""
    answered = isinstance(failure, ResponseError) and not is_passing(failure)
    return answered or isinstance(failure, FINAL)


def trouble(failure: BaseException, target: RedisTarget | None = None) -> str:
    """A log's sentence about the failure."""
    redis = f"Redis at {target}" if target else "Redis"
    if is_refused(failure):
        return f"{redis} refused: {failure}"
    return f"{redis} does not answer: {failure}"


def is_full(reply: Any) -> bool:
    """Whether a Redis at `maxmemory` refused it. It answers, and takes what needs no memory."""
    return isinstance(reply, OutOfMemoryError) or (
        isinstance(reply, ResponseError) and "OOM " in str(reply)
    )
