"""Names for the shell's completion: gates, queues, tasks, groups and sandboxes, from Redis.

A person waits at a prompt. So a Redis that does not answer within a second offers no names, and
causes no message. No server is started for it.
"""

from collections.abc import Callable, Iterable
from typing import Any

import click
import redis
from click.shell_completion import CompletionItem

from ground import PenstockError, connect
from ground.keys import in_run, tagged
from ground.redis.url import parse_redis_url
from ground.server.server import running_server
from ground.settings import GroundSettings
from limiter.commands import INDEX
from penstock.options import settings_in

_WAITS = 1.0  # seconds
_MOST = 500  # names
Names = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_Read = Callable[[Any, str], Iterable[bytes]]


def _gates(client: Any, run: str) -> Iterable[bytes]:
    return set(client.smembers(INDEX))


def _queues(client: Any, run: str) -> Iterable[bytes]:
    return {key.removeprefix(b"rq:queue:") for key in client.smembers("rq:queues")}


def _tasks(client: Any, run: str) -> Iterable[bytes]:
    return set(client.zrange(tagged("buffer", run, "tasks"), 0, _MOST))


def _groups(client: Any, run: str) -> Iterable[bytes]:
    """The groups of every task."""
    found: list[bytes] = []
    for task in _tasks(client, run):
        name = in_run(run, task.decode())
        for state in ("kept", "ready", "open", "leased"):
            found += client.zrange(tagged("buffer", name, state), 0, _MOST)
    return {gid.rpartition(b":")[0] for gid in found}


def _sandboxes(client: Any, run: str) -> Iterable[bytes]:
    return set(client.zrange(tagged("sandbox", run, "leases"), 0, _MOST))


def _named(read: _Read) -> Names:
    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = _read(read, settings_in(context))
        except (PenstockError, redis.RedisError, OSError, ValueError):
            return []
        names = sorted(name.decode(errors="replace") for name in found)
        fitting = [one for one in names if one.startswith(incomplete) and one.isprintable()]
        return [CompletionItem(one) for one in fitting[:_MOST]]

    return complete


def _read(read: _Read, settings: GroundSettings) -> Iterable[bytes]:
    if settings.redis_url is not None:
        target = parse_redis_url(settings.redis_url.get_secret_value())
    elif (found := running_server(settings.data_dir)) is not None:
        target = found
    else:
        return []
    client = connect(target, timeout=_WAITS)
    try:
        return read(client, settings.run)
    finally:
        client.close()


gates, queues, tasks, groups, sandboxes = map(
    _named, (_gates, _queues, _tasks, _groups, _sandboxes)
)
