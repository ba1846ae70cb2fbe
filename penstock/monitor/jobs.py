"""One job in full: its program, what it printed, and how it failed. Never unpickled."""

import asyncio
import base64
import json
import zlib
from typing import Any

import redis
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from ground import connect
from ground.redis.url import RedisTarget

_MOST = 100_000  # characters of any one text


async def job_in_full(client: Any, id: str) -> dict[str, Any] | None:
    """What Redis knows of it; None where it knows nothing."""
    fields = await client.hgetall(f"rq:job:{id}")
    if not fields:
        return None
    results = await client.xrevrange(f"rq:results:{id}", count=1)
    last = results[0][1] if results else {}
    text = {name.decode(): _text(value) for name, value in fields.items() if name != b"data"}
    return {
        "id": id,
        **{name: text.get(name, "") for name in ("status", "origin", "description", "worker_name")},
        **{name: text.get(name, "") for name in ("enqueued_at", "started_at", "ended_at")},
        "call": _call(fields.get(b"data", b"")),
        "result": _result(last.get(b"return_value")),
        "error": error_text(last.get(b"exc_string")) or _text(fields.get(b"exc_info"))[-_MOST:],
    }


async def requeue_job(target: RedisTarget, id: str) -> bool:
    """A failed job goes back to its queue; False where there is none such."""
    return await asyncio.to_thread(_requeue, target, id)


def _requeue(target: RedisTarget, id: str) -> bool:
    client = connect(target)
    assert isinstance(client, redis.Redis)  # noqa: S101 - a Cluster was refused at the door
    try:
        job = Job.fetch(id, connection=client, serializer=JSONSerializer)
        if job.get_status() != "failed":
            return False
        job.requeue()
    except (NoSuchJobError, InvalidJobOperation):
        return False
    finally:
        client.close()
    return True


def _call(data: bytes) -> dict[str, Any]:
    """The function and its arguments; a program is shown apart."""
    try:
        function, _, arguments, named = json.loads(unpacked(data))
    except (ValueError, TypeError, RecursionError):
        return {"function": "", "note": "its arguments are not JSON, and are not opened here"}
    first = arguments[0] if arguments else None
    if isinstance(first, dict) and isinstance(first.get("code"), str):
        rest = {name: value for name, value in first.items() if name not in ("code", "files")}
        return {"function": function, "code": first["code"][:_MOST], "request": rest}
    return {"function": function, "arguments": _cut([arguments, named])}


def _result(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        return _cut(json.loads(base64.b64decode(value)))
    except (ValueError, RecursionError):
        return "it is not JSON, and is not shown"


def error_text(value: bytes | None) -> str:
    """In a result's stream RQ keeps it as base64 of zlib's."""
    try:
        return _text(base64.b64decode(value or b""))[-_MOST:]
    except ValueError:
        return _text(value)[-_MOST:]


def unpacked(data: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(data, 64 << 20)
    except zlib.error:
        return data


def _cut(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MOST else text[:_MOST] + "…"


def _text(value: bytes | None) -> str:
    return unpacked(value).decode(errors="replace") if value else ""
