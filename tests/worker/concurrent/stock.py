"""Stock RQ workers, really run: `rq worker` as a user starts it, until the queue is empty."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from tests.harness import leash
from tests.harness.nursery import ROOT

RQ = str(Path(sys.executable).with_name("rq"))
JSON = ("--serializer", "rq.serializers.JSONSerializer")
KINDS = {
    "fork": ("worker",),
    "preloaded": ("worker", "-c", "worker.preload"),
    "simple": ("worker", "-w", "rq.SimpleWorker"),
    "spawn": ("worker", "-w", "rq.worker.SpawnWorker"),
    "pool": ("worker-pool", "-n", "2"),
}
OURS = {
    "ours": ("worker", "-w", "worker.ConcurrentWorker"),
    "our pool": ("worker-pool", "-n", "2", "-w", "worker.ConcurrentWorker"),
}
WRONG = {"pickle": ("worker", "--serializer", "rq.serializers.PickleSerializer")}


def call(url: str, command: str, *words: str) -> str:
    """What `rq info` and the like say."""
    return subprocess.run(
        [RQ, command, "-u", url, *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=200, check=True,
    ).stdout  # fmt: skip


def start(kind: str, url: str, *more: str, **environment: str) -> "subprocess.Popen[bytes]":
    """One of `KINDS`, on the queue `code`, as a process on the leash."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    command, *rest = (KINDS | OURS | WRONG)[kind]
    return leash.start(
        [RQ, command, "-u", url, *JSON, *rest, *more, "code"],
        env=clean | {"PYTHONPATH": str(ROOT)} | environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def end(worker: "subprocess.Popen[bytes]") -> str:
    """SIGKILL, to the workers of a pool too; what they had said."""
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        os.killpg(worker.pid, signal.SIGKILL)
    return worker.communicate()[0].decode()


def run(kind: str, url: str, **environment: str) -> str:
    """Run what is queued; what the worker said."""
    worker = start(kind, url, "--burst", **environment)
    said, _ = worker.communicate(timeout=100)
    assert worker.returncode == 0, said.decode()
    return said.decode()


def code_queue(redis: Any) -> Queue:
    """As a user without anything of ours in the trainer has it."""
    return Queue("code", connection=redis, serializer=JSONSerializer)


def enqueue(redis: Any, **request: Any) -> Job:
    return code_queue(redis).enqueue("worker.jobs.run_code", request, job_timeout=60)
