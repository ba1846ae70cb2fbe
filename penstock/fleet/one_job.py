"""A job in full: its program, what it printed, how it failed, and where its time went. Never
unpickled."""

import base64
import json
import zlib
from dataclasses import asdict, dataclass
from datetime import datetime
from math import isfinite
from typing import Any

_FACTS = (
    "status", "origin", "description", "worker_name", "enqueued_at", "started_at", "ended_at",
)  # fmt: skip
_MOST = 100_000  # characters of any one text
_PARTS = (("permit", "permit_seconds"), ("run", "running_seconds"), ("backoff", "backoff_seconds"))


@dataclass(frozen=True)
class Part:
    """Seconds of one kind: queued, permit, start, run, backoff, or for a job at work `working`."""

    what: str
    seconds: float


@dataclass(frozen=True)
class Execution:
    """A recorded end of the job."""

    worker: str
    started: float
    ended: float
    ok: bool


@dataclass(frozen=True)
class Stored:
    """A job as Redis keeps it: its hash, its latest results, and when they were read."""

    id: str
    fields: dict[bytes, bytes]
    results: list[tuple[bytes, dict[bytes, bytes]]]
    now: float

    @property
    def last(self) -> dict[bytes, bytes]:
        """Return the job's latest result; empty if there is none."""
        return self.results[0][1] if self.results else {}

    def value(self) -> Any:
        """The value that it returned, whole. Raises `ValueError` for what is not JSON."""
        value = self.last.get(b"return_value")
        try:
            return None if value is None else json.loads(base64.b64decode(value))
        except RecursionError as deep:
            raise ValueError(str(deep)) from None

    def called(self) -> tuple[str, list[Any]]:
        """The function, and its arguments. Raises `ValueError` for what RQ does not write as
        JSON."""
        function, arguments, named = _called(self.fields.get(b"data", b""))
        return function, arguments or _by_name(named)


async def stored_job(client: Any, id: str) -> Stored | None:
    """None if Redis knows nothing of it."""
    pipe = client.pipeline(transaction=False)
    pipe.hgetall(f"rq:job:{id}")
    pipe.xrevrange(f"rq:results:{id}", count=10)
    pipe.time()
    fields, results, (seconds, micros) = await pipe.execute()
    return Stored(id, fields, results, seconds + micros / 1e6) if fields else None


async def job_in_full(client: Any, stored: Stored) -> dict[str, Any]:
    """A job as Redis knows it, cut to what a page can show."""
    fields, last, now = stored.fields, stored.last, stored.now
    text = {_text(name): _text(value) for name, value in fields.items() if name != b"data"}
    result, executions = _result(stored), _executions(stored.results)
    return {
        "id": stored.id,
        **{name: text.get(name, "") for name in _FACTS},
        "outcome": text.get("penstock_outcome", ""),
        "attempts": attempts_of(text.get("penstock_attempts"), text.get("started_at")),
        "deaths": int(number(fields.get(b"penstock_deaths"))),
        "share": text.get("penstock_share", ""),
        **await _of_worker(client, text.get("worker_name", "")),
        "timeline": [asdict(part) for part in _timeline(text, result, executions, now)],
        "executions": [asdict(one) for one in executions],
        "call": _call(fields.get(b"data", b"")),
        "result": _cut(result),
        "error": error_text(last.get(b"exc_string"))
        or _text(unpacked(fields.get(b"exc_info", b"")))[-_MOST:],
    }


def first_line(program: str) -> str:
    """The first of a program's lines that says anything."""
    return next((line.strip() for line in program.splitlines() if line.strip()), "")


def attempts_of(counted: str | None, started: object) -> int:
    """The times that a worker took the job. Stock workers count none, and note when they began."""
    return int(number((counted or "").encode())) or int(bool(started))


def program_in(data: bytes) -> str:
    """The program that a job's call has; empty if it is none."""
    called = _call(data)
    return str(called.get("code", ""))


async def _of_worker(client: Any, worker: str) -> dict[str, Any]:
    """The gate at which its worker takes permits, and the worker's release; empty if the worker
    has none, or has left. `ungated`: it says that it takes none."""
    named = ("penstock_gate", "penstock_release")
    gate, release = await client.hmget(f"rq:worker:{worker}", named) if worker else (None, None)
    return {"gate": _text(gate), "release": _text(release), "ungated": gate == b""}


def _called(data: bytes) -> tuple[str, list[Any], Any]:
    """The function, its arguments, and those by name."""
    try:
        function, _, arguments, named = json.loads(unpacked(data))
    except (TypeError, RecursionError) as wrong:
        raise ValueError(str(wrong)) from None
    if not isinstance(function, str) or not isinstance(arguments, list):
        raise ValueError("not RQ's form")  # noqa: TRY004 - caught beside the others
    return function, arguments, named


def _call(data: bytes) -> dict[str, Any]:
    """The function and its arguments; a program is shown apart."""
    try:
        function, arguments, named = _called(data)
    except ValueError:
        return {"function": "", "note": "its arguments are not RQ's JSON, and are not opened here"}
    first = next(iter(arguments or _by_name(named)), None)
    if isinstance(first, dict) and isinstance(first.get("code"), str):
        rest = {name: value for name, value in first.items() if name not in ("code", "files")}
        return {"function": function, "code": first["code"][:_MOST], "request": rest}
    return {"function": function, "arguments": _cut([arguments, named])}


def _by_name(named: Any) -> list[Any]:
    """The request of a job that passes it by its name."""
    return [named["request"]] if isinstance(named, dict) and "request" in named else []


def _result(stored: Stored) -> Any:
    try:
        return stored.value()
    except ValueError:
        return "it is not JSON, and is not shown"


def error_text(value: bytes | None) -> str:
    """Unpack an error's text: in a result's stream RQ keeps it as base64 of zlib's bytes."""
    try:
        packed = base64.b64decode(value or b"")
    except ValueError:
        packed = value or b""
    return _text(unpacked(packed))[-_MOST:]


def unpacked(data: bytes) -> bytes:
    """Unpack what RQ packs: a job's call and its error. Other bytes stay as they are."""
    try:
        return zlib.decompressobj().decompress(data, 64 << 20) or data
    except zlib.error:
        return data


def _cut(value: Any) -> Any:
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MOST else text[:_MOST] + "…"


def _text(value: bytes | None) -> str:
    return value.decode(errors="replace") if value else ""


def _timeline(
    fields: dict[str, str], result: Any, executions: list[Execution], now: float
) -> list[Part]:
    """The parts of a job's time, in order. What a result does not account for is `start`: starting
    the sandbox, and recording the end."""
    queued, began = _moment(fields.get("enqueued_at")), _moment(fields.get("started_at"))
    ended = _moment(fields.get("ended_at"))
    if ended is None and fields.get("status") == "failed" and executions:
        ended = executions[0].ended  # RQ notes no end of a job that it gives up
    if queued is None:
        return []
    if began is None or fields.get("status") == "queued":
        return [Part("queued", max(0.0, (ended or now) - queued))]
    parts = [Part("queued", max(0.0, began - queued))]
    if ended is None or ended < began:
        return [*parts, Part("working", max(0.0, now - began))]
    took = max(0.0, ended - began)
    spent = {what: _seconds(result, name) for what, name in _PARTS}
    if not any(spent.values()):
        return [*parts, Part("run", took)]
    rest = max(0.0, took - sum(spent.values()))
    order = [("permit", spent["permit"]), ("start", rest),
             ("run", spent["run"]), ("backoff", spent["backoff"])]  # fmt: skip
    return [*parts, *(Part(what, seconds) for what, seconds in order if seconds)]


def _executions(entries: list[tuple[bytes, dict[bytes, bytes]]]) -> list[Execution]:
    """The executions in a stream of results, the latest first."""
    return [
        Execution(
            worker=row.get(b"worker_name", b"").decode(errors="replace"),
            started=number(row.get(b"execution_started_at")),
            ended=number(row.get(b"execution_ended_at")) or int(id.partition(b"-")[0]) / 1000,
            ok=row.get(b"type") == b"1",
        )
        for id, row in entries
    ]


def _moment(text: str | None) -> float | None:
    """RQ writes `2026-08-02T10:11:12.345678Z`."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def _seconds(result: Any, name: str) -> float:
    value = result.get(name) if isinstance(result, dict) else None
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


def number(text: bytes | None) -> float:
    """Read a number; 0 for what is none. NaN and infinity are none: no process writes them."""
    try:
        found = float(text or 0)
    except ValueError:
        return 0.0
    return found if isfinite(found) else 0.0
