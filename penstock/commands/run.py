"""`penstock run`: one program through the queue, as if it had run here."""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Iterator
from typing import BinaryIO

import click
import redis

from ground import PenstockError
from ground.settings import GroundSettings
from jail.errors import RequestRefused
from jail.judge.asking import JudgeOptions, cases_of
from jail.judge.formats import Cases
from jail.models import CodeRequest
from penstock.commands.completion import queues
from penstock.fleet import FleetReader
from penstock.fleet.why_it_grows import gate_of
from penstock.in_order import run_in_order
from penstock.named_or_own_redis import fleets_redis, require_one_primary
from penstock.options import Seconds, examples, given_settings, say, settings_options
from penstock.programs import NOT_RUN, ended, request_of
from penstock.verdict_table import print_verdicts, progress_bar, verdicts_exit_code
from worker.errors import QueueError, start_a_worker
from worker.judging.progress import listening
from worker.queue.code_queue import CodeQueue

PATIENCE = 2.0  # seconds until it is said why a program waits


@click.command(
    "run",
    short_help="Run one program through the queue, as if it ran here.",
    epilog=examples("""
Examples:

  penstock run solution.py
  echo 'print(6 * 7)' | penstock run -
  penstock run -i solution.py < input.txt
  penstock run --timeout 2 --json solution.py | jq .run_result.execution_time
  penstock run --cases cases.json solution.cpp

Without -i its input is empty. With -i, stdin is read to its end before the program is sent. In
a script's loop or a CI job that would take input meant for others, or never end.

It exits as the program did: 128 + n after signal n, 124 if its time ran out, 137 at
another limit. 125: the program was not run, or nobody knows how it ended.

With --cases it is judged: compiled once, run on each case of the file, which is in any format
that jail.judge.read_cases reads. It exits with 0 if all cases passed, with 1 if one did
not, and with 125 if a verdict is missing.
"""),
)
@click.argument("program", type=click.File("rb"), metavar="FILE|-")
@click.option(
    "-i", "--stdin", "with_input", is_flag=True, help="Send stdin as the program's input."
)
@click.option("--queue", default="code", show_default=True, shell_complete=queues,
              help="The queue to put it on.")  # fmt: skip
@click.option("--language", help="Default: by the file's name, else python.")
@click.option("--timeout", type=Seconds(0, min_open=True), default=10.0,
              show_default=True, help="Seconds that it may run.")  # fmt: skip
@click.option("--cases", type=click.File("rb"), metavar="FILE",
              help="Judge it against these cases, as JSON.")  # fmt: skip
@click.option("--wait", is_flag=True, help="Queue it even if no worker listens now.")
@click.option("--json", "as_json", is_flag=True, help="The whole result as JSON on stdout.")
@settings_options
def command(
    program: BinaryIO,
    with_input: bool,
    queue: str,
    language: str | None,
    timeout: float,
    cases: BinaryIO | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Run a program through the queue; print what it prints, exit as it exits."""
    settings = given_settings()
    require_one_primary(settings)
    if cases is not None and cases is program:
        raise click.UsageError("--cases: stdin is already the program; use a file for one of them")
    request = request_of(program, language, timeout, with_input=with_input)
    judged_on = _read_cases(cases, request) if cases is not None else None
    with fleets_redis(settings) as url:
        if not wait and (start := run_in_order(_start_if_none_listens(url, settings, queue))):
            say(
                f"penstock: no worker listens on queue {queue!r}; start everything with penstock "
                f"up, or a worker: {start}; or wait for one with --wait",
                err=True,
            )
            return NOT_RUN
        code_queue = CodeQueue(url, queue, no_workers_after=86400.0)
        try:
            with _saying_why_it_waits(url, settings, queue):
                if judged_on is not None:
                    return _judged(url, code_queue, request, judged_on, as_json=as_json)
                result = code_queue.sync.run(request)
        except QueueError as failure:
            say(f"penstock: {failure}", err=True)
            return NOT_RUN
    return ended(result, as_json=as_json)


def _read_cases(file: BinaryIO, request: CodeRequest) -> Cases:
    if request.stdin is not None:
        raise click.UsageError("-i and --cases: each case has an input of its own")
    try:
        return cases_of(file.read().decode("utf-8-sig", errors="replace"))
    except RequestRefused as refusal:
        raise click.UsageError(f"--cases {file.name}: {refusal}") from None


def _judged(
    url: str, queue: CodeQueue, request: CodeRequest, cases: Cases, *, as_json: bool
) -> int:
    options: JudgeOptions = {
        "language": request.language, "run_timeout": request.run_timeout, "keep": "failures",
    }  # fmt: skip
    with progress_bar(len(cases.cases), "case") as at, contextlib.ExitStack() as held:
        if at is not None:
            options |= {"progress": True, "correlation_id": uuid.uuid4().hex}
            held.enter_context(listening(url, options["correlation_id"], at))
        result = queue.sync.judge(request.code, cases, **options)
    if as_json:
        click.echo(result.model_dump_json())
    else:
        print_verdicts(result)
    return verdicts_exit_code(result, NOT_RUN)


async def _start_if_none_listens(url: str, settings: GroundSettings, queue: str) -> str:
    """The command that starts a worker of a queue; empty if one listens."""
    async with FleetReader(url, settings.run) as reader:
        workers = await reader.workers()
        if any(queue in worker.queues and worker.state != "dead" for worker in workers):
            return ""
        gates = [queue] if await reader.gate_status(queue) else []
    return start_a_worker(queue, gate_of(queue, workers, gates))


@contextlib.contextmanager
def _saying_why_it_waits(url: str, settings: GroundSettings, queue: str) -> Iterator[None]:
    """Say on stderr, once, why it waits, as `penstock top` does; nothing while the program just
    takes its time."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(PATIENCE):
            with contextlib.suppress(redis.RedisError, PenstockError, OSError):  # `run` says that
                reason = asyncio.run(_why_it_waits(url, settings, queue))
                if reason and not over.is_set():
                    say(f"penstock: the program waits: {reason}", err=True)
                    return

    watching = threading.Thread(target=watch, name="penstock-why", daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join(timeout=1)


async def _why_it_waits(url: str, settings: GroundSettings, queue: str) -> str:
    async with FleetReader(url, settings.run) as reader:
        found = await reader.queue(queue)
    return found.reason if found and found.depth else ""
