"""Turns of a session without an engine: three tokens behind a prompt of two."""

import asyncio
from typing import Any

from gateway.calls import Call, Sent
from gateway.log import Asked, Fresh, Session, SessionLog
from gateway.packing import floats_of, ids_of
from tests.gateway.conftest import Bench


def asked(body: int, *hashes: bytes, **more: Any) -> Asked:
    return Asked(body.to_bytes(16), hashes, **more)


def answer(begun: Any, parent: int | None = None, keep: int = 0, **more: Any) -> Call:
    """The call that answers it."""
    assert isinstance(begun, Fresh)
    fields: dict[str, Any] = {
        "out": ids_of([10, 11, 12]), "lps": floats_of([-1.0] * 3), "spans": ((3, 7),),
        "delta": ids_of([1, begun.call]), "t0": begun.at, "t1": begun.at,
        "req_digest": begun.call.to_bytes(16),
    }  # fmt: skip
    return Call(begun.call, parent, keep, **(fields | more))


async def one_turn(log: SessionLog, session: Session, body: int = 1, **more: Any) -> Call:
    begun = await log.begin(session, asked(body))
    call = answer(begun, **more)
    assert isinstance(begun, Fresh)
    await log.commit(session, begun.fence, call, body.to_bytes(16), b"said")
    log.sent(session, call.id, Sent.WHOLE)
    return call


async def drains(bench: Bench) -> None:
    """Until a session is about to be frozen."""
    while (await bench.log.listed("math"))[0]["state"] != "draining":  # noqa: ASYNC110
        await asyncio.sleep(0)
