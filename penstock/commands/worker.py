"""`penstock worker`: take code jobs from queues and run them, hundreds at a time."""

import os
import secrets
import signal
import socket
from typing import TYPE_CHECKING

import click
import redis
from rq.serializers import JSONSerializer
from rq.worker import DequeueStrategy

from ground import SettingError, connect
from ground.extras import needed_by
from ground.redis.url import SETTING
from ground.settings import HttpSettings
from limiter import UnknownGate
from penstock.commands.completion import gates as gate_names
from penstock.commands.completion import queues as queue_names
from penstock.interrupts import Loading
from penstock.named_or_own_redis import require_one_primary, running_redis
from penstock.options import examples, given_settings, settings_options

if TYPE_CHECKING:
    from worker import ConcurrentWorker, WorkerSettings


@click.command(
    "worker",
    epilog=examples("""
Examples:

  penstock worker --sandbox local                the queue `code`, in the embedded sandbox
  penstock worker                                in Sandbox Fusion, PENSTOCK_SANDBOX_FUSION_URL
  penstock worker --gate code --concurrency 64   under the gate `code`
  penstock worker urgent code                    `urgent` before `code`
  penstock worker --allow 'mine.*' mine          your own functions too

After Ctrl-C it finishes the jobs that run. A second Ctrl-C, at least a second later, returns
them to their queue.
"""),
)
@click.argument("queues", nargs=-1, shell_complete=queue_names)
@click.option("--sandbox", metavar="NAME", help="Where programs run: fusion, local, shared.")
@click.option(
    "--concurrency",
    metavar="N",
    help="Jobs at once; default 256, or what the sandbox has room for.",
)
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="What jobs may run besides worker.jobs.*: module.function, or module.* for the functions "
    "that a module defines. May be given several times; '*' is anything.",
)
@click.option("--gate", metavar="NAME", shell_complete=gate_names,
              help="Take a permit of this gate for each job.")  # fmt: skip
@click.option("--gate-limit", metavar="N", help="The gate's limit, if no such gate exists yet.")
@click.option(
    "--name",
    help="The worker's name, as `rq info` shows it; default: the host's, and a random part.",
)
@click.option("--burst", is_flag=True, help="End when the queues are empty.")
@click.option("--max-jobs", type=click.IntRange(1), metavar="N", help="End after so many jobs.")
@click.option("--with-scheduler", is_flag=True, help="Enqueue scheduled jobs when they are due.")
@click.option(
    "--dequeue-strategy",
    type=click.Choice([strategy.value for strategy in DequeueStrategy]),
    default=DequeueStrategy.DEFAULT.value,
    help="Which queue is next; by default the first that has jobs.",
)
@click.option(
    "--metrics-port",
    type=int,
    metavar="PORT",
    help="Serve /livez, /healthz and /metrics of this process, behind PENSTOCK_METRICS_TOKEN.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="On this address.")
@settings_options
def command(
    queues: tuple[str, ...],
    sandbox: str | None,
    concurrency: str | None,
    allow: tuple[str, ...],
    gate: str | None,
    gate_limit: str | None,
    name: str | None,
    burst: bool,
    max_jobs: int | None,
    with_scheduler: bool,
    dequeue_strategy: str,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Run the jobs of QUEUES (default: code). PENSTOCK_SANDBOX says where programs run."""
    with Loading():
        from worker.concurrent.worker import ConcurrentWorker

    for queue in queues:
        # RQ writes a worker's queues in one word, with commas between.
        if not queue or not queue.isprintable() or " " in queue or "," in queue:
            raise click.UsageError(
                f"{queue!r} is not a queue's name; separate names by spaces: "
                "penstock worker urgent code"
            )
    settings = given_settings()
    require_one_primary(settings)
    chosen = _chosen(
        sandbox=sandbox, concurrency=concurrency, gate=gate, gate_limit=gate_limit,
        allow=" ".join(allow) or None,
    )  # fmt: skip
    with running_redis(settings) as url:
        if settings.redis_url is None:
            os.environ[SETTING] = url  # a sandbox of one's own may read it, and jobs do
        client = connect(url)
        assert isinstance(client, redis.Redis)  # noqa: S101 - a Cluster was refused above
        worker = ConcurrentWorker(
            list(queues or ("code",)), name=name or _own_name(), connection=client,
            serializer=JSONSerializer, settings=chosen,
        )  # fmt: skip
        if metrics_port is not None:
            _open_door(worker, metrics_host, metrics_port)
        try:
            worker.work(
                burst=burst, logging_level=settings.log_level, max_jobs=max_jobs,
                with_scheduler=with_scheduler, dequeue_strategy=DequeueStrategy(dequeue_strategy),
            )  # fmt: skip
        except UnknownGate as unknown:
            raise SettingError("--gate", f"{unknown}, or say --gate-limit N here") from None
    return 0 if worker.ended_by in (0, signal.SIGINT) else 128 + worker.ended_by


def _own_name() -> str:
    return f"{socket.gethostname().partition('.')[0]}-{secrets.token_hex(4)}"


def _chosen(**options: str | None) -> "WorkerSettings":
    """The environment's settings with these options over them."""
    from worker.run.choice import check_choice
    from worker.settings import WorkerSettings

    given = {option: value for option, value in options.items() if value is not None}
    settings = WorkerSettings.load(**given)
    if "gate_limit" in given and not settings.gate:
        raise click.UsageError("--gate-limit is the limit of a gate: name it with --gate")
    check_choice(settings)  # one that cannot run programs would fail each that it takes
    return settings.model_copy(update={"allow": settings.allow or ""})


def _open_door(worker: "ConcurrentWorker", host: str, port: int) -> None:
    with needed_by("--metrics-port"):
        from penstock.commands.worker_door import open_door

    where, bound = open_door(worker, host, port, HttpSettings.load().metrics_token)
    click.echo(f"/livez, /healthz and /metrics on {where}:{bound}", err=True)
