"""Open anything by its id or name: one pipeline for the exact ones, then names of the last look."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ground.keys import in_run, tagged
from penstock.fleet.groups import meant_by
from penstock.fleet.model import Fleet
from penstock.fleet.reader import FleetReader

_MOST = 50


@dataclass(frozen=True)
class Found:
    """Something of that name: `kind` is job, queue, worker, gate, group, task or sandbox.

    `where` is what its address needs beside the name: a group's task, a sandbox's run.
    """

    kind: str
    name: str
    where: str = ""
    exact: bool = False


async def find(reader: FleetReader, fleet: Fleet | None, wanted: str) -> list[Found]:
    """The exact ones first, and each once."""
    candidates = list(_candidates(reader.run, fleet, wanted))
    pipe = reader.client.pipeline(transaction=False)
    for _, key in candidates:
        pipe.exists(key)
    there = await pipe.execute()
    exact = [found for (found, _), known in zip(candidates, there, strict=True) if known]
    known = {(one.kind, one.name, one.where) for one in exact}
    close = () if fleet is None else _close(fleet, wanted.lower())
    rest = [
        replace(one, exact=one.name == wanted)
        for one in close
        if (one.kind, one.name, one.where) not in known
    ]
    return sorted([*exact, *rest], key=lambda one: not one.exact)[:_MOST]


def _candidates(run: str, fleet: Fleet | None, wanted: str) -> Iterator[tuple[Found, str]]:
    """The things that could have exactly this name, each with the key that it has then."""
    yield Found("job", wanted, exact=True), f"rq:job:{wanted}"
    yield Found("worker", wanted, exact=True), f"rq:worker:{wanted}"
    yield Found("gate", wanted, exact=True), tagged("gate", wanted)
    for task in fleet.tasks if fleet else ():
        for instance, number in meant_by(wanted):
            gid = f"{instance}:{number}"
            key = tagged("buffer", in_run(run, task.name), f"group:{gid}:meta")
            yield Found("group", gid, task.name, exact=True), key
    for registry in fleet.registries if fleet else ():
        key = tagged("sandbox", registry.run, f"box:{wanted}")
        yield Found("sandbox", wanted, registry.run, exact=True), key


def _close(fleet: Fleet, part: str) -> Iterator[Found]:
    names = [
        *(Found("queue", one.name) for one in fleet.queues),
        *(Found("gate", one.name) for one in fleet.gates),
        *(Found("task", one.name) for one in fleet.tasks),
        *(Found("worker", one.name) for one in fleet.workers),
        *(Found("sandbox", one.name, one.run) for one in fleet.sandboxes),
        *(Found("group", f"{g.instance_id}:{g.round}", g.task) for g in fleet.groups),
        *(Found("job", one.id) for one in (*fleet.failed, *fleet.recent)),
    ]
    for found in names:
        if part in found.name.lower():
            yield found
