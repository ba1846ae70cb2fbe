"""`penstock health`: for an orchestrator's health checks."""

import asyncio
import contextlib
import socket

import click

from ground import connect
from ground.redis.check import require_writes
from ground.redis.connect import UNWELL
from ground.redis.url import SETTING, parse_redis_url
from penstock.entry import is_url, service_health
from penstock.fleet import FleetReader
from penstock.options import examples, given_settings, say, settings_options


@click.command(
    "health",
    epilog=examples("""
Examples:

  penstock health http://127.0.0.1:8889   a service's /healthz answers
  penstock health redis                   Redis answers, and takes writes
  penstock health worker                  a worker of this host has a heartbeat

Exit code: 0 healthy, 1 not; the reason is on stderr.
"""),
)
@click.argument("what", metavar="URL|redis|worker")
@settings_options
def command(what: str) -> int:
    """Check a service, Redis or a worker. The exit code says whether it is healthy."""
    settings = given_settings()
    try:
        if is_url(what):
            return service_health(what)
        if what not in ("redis", "worker"):
            raise click.UsageError(f"{what!r} is not a URL, redis or worker")
        if settings.redis_url is None:
            raise click.UsageError(f"{SETTING} is not set: which Redis?")
        url = settings.redis_url.get_secret_value()
        if what == "redis":
            target = parse_redis_url(url)
            with contextlib.closing(connect(target)) as client:
                require_writes(client, target)
            return 0
        return asyncio.run(_worker(url, settings.run))
    except UNWELL as problem:
        return _unwell(f"{what}: {problem}")


async def _worker(url: str, run: str) -> int:
    async with FleetReader(url, run) as reader:
        workers = await reader.workers()
    host = socket.gethostname()
    if any(worker.host == host and worker.state != "dead" for worker in workers):
        return 0
    return _unwell(f"no worker of host {host!r} has a heartbeat")


def _unwell(reason: str) -> int:
    say(f"penstock: {reason}", err=True)
    return 1
