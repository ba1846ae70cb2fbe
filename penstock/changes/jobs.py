"""Jobs that run again, are cancelled, or are deleted, by RQ's own means and our queue's script."""

from collections.abc import Callable, Sequence

import redis
from redis.exceptions import WatchError
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.queue import Queue
from rq.serializers import JSONSerializer

from ground import connect
from ground.lua import as_text, load_script
from ground.redis.url import RedisTarget

_WITHDRAW = load_script("worker.queue", "withdraw")
_REJOIN = load_script("worker.queue", "rejoin")
_KEPT = 3600  # seconds for which a cancelled job can be looked at
_NEWEST = 2**53  # no submission is younger
_ENDED = ("finished", "failed", "canceled", "stopped")
_OURS = (
    "penstock_abandon", "penstock_unwanted", "penstock_deaths", "penstock_outcome",
    "penstock_again", "penstock_returned", "penstock_charged",
)  # fmt: skip


def change_jobs(target: RedisTarget, change: str, ids: Sequence[str]) -> list[dict[str, str]]:
    """The jobs that it was refused for, each with the reason. It blocks."""
    client = connect(target)
    assert isinstance(client, redis.Redis)  # noqa: S101 - a Cluster was refused at the door
    try:
        found = {id: _changed(client, change, id) for id in dict.fromkeys(ids)}
    finally:
        client.close()
    return [{"id": id, "why": why} for id, why in found.items() if why]


def _changed(client: redis.Redis, change: str, id: str) -> str:
    try:
        job = Job.fetch(id, connection=client, serializer=JSONSerializer)
        return CHANGES[change](client, job)
    except NoSuchJobError:
        return "Redis has forgotten this job"
    except (InvalidJobOperation, ValueError) as refusal:
        return str(refusal) or "RQ refuses it"


def _requeue(client: redis.Redis, job: Job) -> str:
    """Requeue a failed job only, as RQ does."""
    return _retry(client, job) if _status(job) == "failed" else "it has not failed"


def _retry(client: redis.Redis, job: Job) -> str:
    """The job runs again, even if the process that asked for it has gone; once, if two ask at
    once."""
    with client.pipeline() as pipe:
        pipe.watch(job.key)
        if (status := _status(job)) not in _ENDED:
            return f"it is {status}: only a job that has ended can run again"
        pipe.multi()
        pipe.persist(job.key)
        pipe.hdel(job.key, *_OURS)
        job._remove_from_registries(pipeline=pipe)
        job.started_at = job.ended_at = None
        queue = Queue(job.origin, connection=client, serializer=JSONSerializer)
        queue.enqueue_job(job, pipeline=pipe)
        pipe.execute_command(*_REJOIN.command([queue.key], [job.id], whole=True))
        try:
            pipe.execute()
        except WatchError:
            return "it was changed at the same moment; look at it again"
    return ""


def _cancel(client: redis.Redis, job: Job) -> str:
    status = _status(job)
    if status in ("deferred", "scheduled"):
        job.cancel()
        return ""
    row = (job.id, _NEWEST, "cancel")
    had = as_text(_WITHDRAW.call(client, [f"rq:queue:{job.origin}"], [_KEPT, "", *row])[0])
    return "" if had in ("queued", "started") else f"it is {had or 'gone'}: there is no job to stop"


def _delete(client: redis.Redis, job: Job) -> str:
    status = _status(job)
    if status == "started":
        return "it runs: cancel it first"
    if status == "queued":
        _cancel(client, job)  # it may wait in the list of its share
    job.delete()
    return ""


def _status(job: Job) -> str:
    status = job.get_status()
    return str(getattr(status, "value", status) or "gone")


CHANGES: dict[str, Callable[[redis.Redis, Job], str]] = {
    "retry": _retry,
    "requeue": _requeue,
    "cancel": _cancel,
    "delete": _delete,
}
