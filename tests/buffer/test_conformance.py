"""Upstream's own client files against our server: `make conformance SLIME_V0=… SLIME_V1=…`.

They are `slime/rollout/agent_rollout.py` of 3db3545cd and today's
`slime_plugins/rollout_buffer/rollout_buffer_example.py`, fetched by whoever runs this.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.buffer.serving import ServerProcess
from tests.buffer.slime_clients import sums
from tests.harness.scripted_model import scripted_model
from tests.harness.servers import PrivateRedis
from tests.harness.upstream import module_at

STUBS = (
    "transformers", "wandb", "slime", "slime.ray", "slime.ray.buffer", "slime.utils",
    "slime.utils.async_utils", "slime.utils.mask_utils", "slime.utils.types",
    "slime.utils.logging_utils",
)  # fmt: skip
CLIENTS = {version: os.environ.get(f"SLIME_{version}", "") for version in ("V0", "V1")}


@pytest.fixture
def server(
    real_redis: object, shared_server: PrivateRedis, tmp_path: Path
) -> Iterator[ServerProcess]:
    with ServerProcess(shared_server.url, tmp_path) as running:
        yield running


@pytest.mark.parametrize("client", CLIENTS, indirect=True)  # first: it may skip the test
def test_upstreams_own_client_gets_whole_groups(
    client: Any, server: ServerProcess, tmp_path: Path
) -> None:
    rows = [
        {"instance_id": f"math_{n}", "prompt": [{"role": "user", "content": f"{n}+1"}],
         "label": str(n + 1)}
        for n in range(4)
    ]  # fmt: skip
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with scripted_model(sums) as model:
        host, _, port = model.url.removeprefix("http://").partition(":")
        args = SimpleNamespace(
            rollout_num_process=2, num_epoch=1, sglang_router_ip=host, sglang_router_port=port,
            rollout_buffer_url=server.url, agent_rollout_buffer_url=server.url,
            rollout_task_type="math", n_samples_per_prompt=4,
            prompt_data=str(tmp_path / "data.jsonl"), rollout_max_response_len=64,
            rollout_temperature=0.8, rollout_top_p=1.0, hf_checkpoint="/nowhere",
        )  # fmt: skip
        client.start_rollout(server.url, args, {})
        results: list[Any] = []
        finished: list[Any] = []
        while len(results) < 16:
            data, meta = asyncio.run(client.get_rollout_data(api_base_url=server.url))
            results += data
            finished += meta["finished_groups"]
    assert sorted(finished) == [f"math_{n}" for n in range(4)]
    selected = client.select_rollout_data(args, results, 2)
    assert len(selected) == (8 if isinstance(selected[0], dict) else 2)


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Upstream's file as a module, with what it only imports stubbed."""
    path = CLIENTS[request.param]
    if not path:
        pytest.skip(f"SLIME_{request.param} names no client file")
    pytest.importorskip("aiohttp")
    pytest.importorskip("requests")
    for name in STUBS:
        stub: Any = ModuleType(name)
        stub.__getattr__ = lambda attribute: MagicMock(name=attribute)
        stub.__path__ = []
        monkeypatch.setitem(sys.modules, name, stub)
    return module_at(Path(path))
