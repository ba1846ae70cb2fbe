"""Stock RQ calls this when a job ends: it puts a notice on the stream of the process that enqueued
it.

RQ calls before it has stored the result. A small result goes with the notice. For
others the notice is a hint, and the client looks until the result is there.
"""

import json
from typing import Any

NOTICE_LIMIT = 64 << 10  # bytes of a result that goes with its notice
STREAM_LENGTH = 10_000
STREAM_TTL = 3600


def on_success(job: Any, connection: Any, result: Any) -> None:
    text = json.dumps(result)
    _tell(job, connection, "finished", {"result": text} if len(text) <= NOTICE_LIMIT else {})


def on_failure(job: Any, connection: Any, *exc_info: Any) -> None:
    if not job.should_retry:
        _tell(job, connection, "failed", {})


def on_stopped(job: Any, connection: Any) -> None:
    _tell(job, connection, "stopped", {})


def _tell(job: Any, connection: Any, status: str, more: dict[str, str]) -> None:
    stream = connection.hget(job.key, "penstock_reply_to")
    if stream is None:
        return
    entry = {"job": job.id, "status": status, **more}
    with connection.pipeline() as pipe:
        pipe.xadd(stream, entry, maxlen=STREAM_LENGTH, approximate=True)
        pipe.expire(stream, STREAM_TTL)
        pipe.execute()
