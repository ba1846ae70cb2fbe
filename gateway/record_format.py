"""A call as Redis keeps it: one value, written once, which a script can cut its ids out of.

turn.py decides what is recorded, and when. These are its bytes:

    d<fence> <parent> <keep> <len(delta)> <bytes of ids> <bytes of log-probabilities>\\n
    ids of delta and out · log-probabilities · the rest as JSON · the request's digest, 16 bytes

An open call has `o<fence> <parent> <retry> <t0> ` and the digest, as begin.lua writes it.
"""

import json
from dataclasses import replace

from gateway.calls import Call, Sent, State
from gateway.packing import Ids, ids_of, pack, unpack

_DIGEST = 16
_SENT = {"O": Sent.UNKNOWN, "B": Sent.UNKNOWN, "1": Sent.UNKNOWN, "x": Sent.UNKNOWN,
         "2": Sent.WHOLE, "3": Sent.HUNG_UP}  # fmt: skip


def record_of(call: Call, fence: str) -> bytes:
    """A done call."""
    if len(call.req_digest) != _DIGEST:
        raise ValueError(f"call {call.id} needs the digest of its request, of {_DIGEST} bytes")
    ids, lps = pack(call.delta + call.out), pack(call.lps)
    parent = call.parent or ""
    head = f"d{fence} {parent} {call.keep} {len(call.delta)} {len(ids)} {len(lps)}\n"
    rest = [
        call.finish, call.stop, call.retry, call.lacks, int(call.train), int(call.constrained),
        call.foreign, call.dialect, call.engine, call.t0, call.t1 - call.t0, call.spans,
    ]  # fmt: skip
    if call.bracket or call.asked:
        rest += [call.bracket, call.asked]
    text = json.dumps(rest, separators=(",", ":"))
    return head.encode() + ids + lps + text.encode() + call.req_digest


def call_of(number: int, record: bytes, state: str) -> Call:
    """The call of a record. What a script that was stopped left half is a broken call."""
    sent = _SENT.get(state, Sent.NOTHING)
    digest = record[-_DIGEST:]
    if not record.startswith(b"d"):
        _, parent, retry, t0, *_ = record[:-_DIGEST].split(b" ") if record else (b"",) * 5
        return Call(
            number, int(parent) if parent else None, req_digest=digest, retry=int(retry or 0),
            t0=int(t0 or 0), sent=sent, state=State.OPEN if state in ("o", "O") else State.BROKEN,
        )  # fmt: skip
    head, _, body = record.partition(b"\n")
    _, parent, *numbers = head.split(b" ")
    keep, before, ids_size, lps_size = map(int, numbers)
    ids = unpack("i", body[:ids_size])
    lps = unpack("f", body[ids_size : ids_size + lps_size])
    (
        finish, stop, retry_, lacks, train, constrained, foreign, dialect, engine, t0_, took, spans,
        *more,
    ) = json.loads(body[ids_size + lps_size : -_DIGEST])  # fmt: skip
    call = Call(
        number, int(parent) if parent else None, keep, ids[:before], ids[before:], lps,
        tuple((tokens, version) for tokens, version in spans), None, finish, stop,
        req_digest=digest, retry=retry_, lacks="conflict" if state == "x" else lacks,
        train=bool(train), constrained=bool(constrained), foreign=foreign, dialect=dialect,
        engine=engine, t0=t0_, t1=t0_ + took, sent=sent,
    )  # fmt: skip
    if not more:
        return call
    return replace(call, bracket=tuple(more[0]) if more[0] else None, asked=more[1])


def full_from(parts: list[tuple[int, bytes]]) -> Ids:
    """All ids of a call, from what `ids.lua` gives: the call first, then what it begins with."""
    ids = ids_of()
    for keep, packed in reversed(parts):
        del ids[keep:]
        ids += unpack("i", packed)
    return ids
