"""A session of many turns, up to a million tokens."""

import resource

import pytest

from gateway.calls import Call, Sent
from gateway.items import rows_in
from gateway.log import Asked, Fresh
from gateway.packing import floats_of, ids_of
from tests.gateway.conftest import Bench
from tests.harness.servers import PrivateRedis

TOKENS = 250


@pytest.mark.parametrize("turns", [400, pytest.param(4000, marks=pytest.mark.soak)])
async def test_a_long_session_is_one_row(
    shared_server: PrivateRedis, real_redis: object, turns: int
) -> None:
    """Redis holds new tokens only; the item holds each once; memory holds some copies."""
    bench = Bench(shared_server.target)
    await bench.start()
    session = await bench.open()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    parent, end = None, 0
    lps = floats_of(-n / 1024 for n in range(TOKENS))
    for turn in range(1, turns + 1):
        asked = Asked(turn.to_bytes(16), ((turn - 1).to_bytes(16),) if parent else ())
        begun = await bench.log.begin(session, asked)
        assert isinstance(begun, Fresh)
        assert begun.hits == ((parent,) if parent else ())
        out = ids_of((turn * 7919 + n * 104729) % 150_000 for n in range(TOKENS))
        call = Call(
            begun.call, parent, end, ids_of([turn]), out, lps, ((TOKENS, 7),),
            req_digest=asked.digest,
        )  # fmt: skip
        await bench.log.commit(session, begun.fence, call, turn.to_bytes(16))
        bench.log.sent(session, begun.call, Sent.WHOLE)
        parent, end = call.id, call.end
    used = int((await bench.log.listed("math"))[0]["bytes"])
    assert used < 8 * turns * TOKENS
    another = bench.another()
    assert len(await another.ids(session, turns)) == turns * (TOKENS + 1)
    ended = await another.finalize(session, 1.0)
    assert (ended.rows, ended.counts["trained"]) == (1, turns * TOKENS)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 * 1024, "kilobytes"
    batch = await bench.buffer.take(1)
    assert batch is not None
    ((row, _),) = rows_in(batch.items[0])
    assert len(row.tokens) == turns * (TOKENS + 1)
    await bench.aclose()
