"""The tool that draws how Redis' time grows: each of its curves, at one small size."""

import pytest

from docs.tools import scaling
from docs.tools.sizing import Server
from tests.harness.servers import PrivateRedis


@pytest.mark.in_turns("curve")
@pytest.mark.parametrize("curve", scaling.CURVES)
async def test_a_curve_is_measured(
    curve: str,
    shared_server: PrivateRedis,
    real_redis: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "OPERATIONS", 200)
    monkeypatch.setattr(scaling, "IDLE", 0.01)
    server = Server(shared_server.url)
    took = await scaling.CURVES[curve](server, 3)
    server._client.close()
    # An idle server is taken off by a short look; on a busy machine it may seem to take more.
    assert 0 < abs(took) < 1e6
    assert curve in scaling.KEPT.read_text()
