"""This room finds what an id is of, and explains each of what it may be."""

from collections.abc import Sequence

from buffer import RolloutBuffer
from gateway.log import SessionLog
from ground import PenstockError
from ground.keys import tagged
from penstock.fleet import FleetReader
from penstock.fleet.groups import meant_by
from penstock.fleet.search import find
from penstock.why.item import explain_group, explain_item
from penstock.why.job import KEPT, explain_job
from penstock.why.model import Explained
from penstock.why.sandbox import explain_sandboxes
from penstock.why.session import explain_session
from worker.queue.dropped_jobs import REASONS

_OPEN_SESSIONS = 1000  # of a task, among which one is looked for by its item's uid
_DROPPED = 1000


class NothingFound(PenstockError):
    """Redis knows nothing of an id; it says where that was looked for."""

    def __init__(self, id: str, looked: Sequence[str], hint: str) -> None:
        super().__init__(f"nothing has the id {id!r}. Looked for: {'; '.join(looked)}. {hint}")


async def explain(reader: FleetReader, id: str) -> list[Explained]:
    """Whatever has this id: a job, an item of the buffer or a group, a session of the gateway, a
    session sandbox. Raises `NothingFound`."""
    job = await explain_job(reader, id)
    found = [job[1]] if job else []
    found += await explain_sandboxes(reader, id)
    buffers = await reader.open_buffers()
    log = SessionLog(reader.link, reader.run)  # it only reads: the reader closes its connection
    for buffer in buffers:
        found += await _in_task(reader, log, buffer, id)
    if not found:
        raise NothingFound(id, *await _looked(reader, buffers, id))
    return found


async def _in_task(
    reader: FleetReader, log: SessionLog, buffer: RolloutBuffer, id: str
) -> list[Explained]:
    session = await explain_session(reader, log, buffer, id)
    if session is not None:
        return [session]
    held = await buffer.catalog.holding(id)
    found = [await explain_item(reader, buffer, *place, id) for place in held]
    if not held:
        opened = await log.listed(buffer.task, _OPEN_SESSIONS)
        sids = [one["sid"] for one in opened if one.get("uid") == id]
        found += [await explain_session(reader, log, buffer, sid) for sid in sids]
    found += [await explain_group(reader, buffer, *group) for group in meant_by(id)]
    return [one for one in found if one is not None]


async def _looked(
    reader: FleetReader, buffers: Sequence[RolloutBuffer], id: str
) -> tuple[list[str], str]:
    """The places where it was looked for, and what a person may have meant."""
    tasks = ", ".join(buffer.task for buffer in buffers) or "none"
    looked = [
        "a job on any queue", "a session sandbox of any run",
        f"items, groups and sessions of run {reader.run!r}, whose tasks are {tasks}",
    ]  # fmt: skip
    if why := await _dropped(reader, id):
        return looked, why
    others = [one for one in await find(reader, None, id) if one.kind in ("worker", "gate")]
    if others:
        return looked, f"There is a {others[0].kind} of that name: penstock top shows it"
    return looked, f"{KEPT}; another run is named by --run"


async def _dropped(reader: FleetReader, id: str) -> str:
    """The end of a job without a hash, as far as its queue says."""
    for key in sorted(await reader.client.smembers("rq:queues")):
        queue = key.decode(errors="replace").removeprefix("rq:queue:")
        rows = await reader.client.xrevrange(tagged("work", queue, "dropped"), count=_DROPPED)
        for _, row in rows:
            if row.get(b"job") == id.encode():
                why = row.get(b"why", b"").decode(errors="replace")
                return f"Queue {queue!r} dropped a job of that id: {REASONS.get(why, why)}"
    return ""
