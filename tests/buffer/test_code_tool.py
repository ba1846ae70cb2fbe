"""The example generator joins the halves: model, code queue, worker, buffer, trainer."""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ground
from tests.architecture.source import ROOT
from tests.buffer.serving import ServerProcess
from tests.harness import patient
from tests.harness.scripted_model import Answer, said, scripted_model
from tests.harness.servers import PrivateRedis, until
from tests.worker.concurrent.crew import at_work

GENERATORS = ROOT / "examples" / "generators"


class RunsCode:
    """A program first; then what it printed, or every other time something else."""

    def __init__(self) -> None:
        self._tries: dict[int, Iterator[int]] = defaultdict(itertools.count)

    def __call__(self, asked: dict[str, Any], number: int) -> Answer:
        last = asked["messages"][-1]["content"]
        if not last.startswith("Output:"):
            return said(f"Let me see.\n```python\nprint({last})\n```")
        printed = int(last.split()[1])
        return said(f"Answer: {printed + next(self._tries[printed]) % 2}")


def test_a_model_runs_code_through_the_queue_and_its_trajectories_reach_the_trainer(
    real_redis: Any, shared_server: PrivateRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SANDBOX", "tests.buffer.plain_sandbox.Plain")
    rows = [
        {"instance_id": f"product-{n}", "prompt": [{"role": "user", "content": f"{n} * 17"}],
         "label": str(n * 17)}
        for n in range(3)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    server = ServerProcess(shared_server.url, tmp_path, PENSTOCK_GENERATORS=str(GENERATORS))
    worker_client = ground.connect(shared_server.target, timeout=None)
    with scripted_model(RunsCode()) as model, at_work(worker_client), server:
        payload = {
            "task_type": "code_tool", "num_repeat_per_sample": "4", "num_epoch": "1",
            "num_process": "2", "input_file": str(tmp_path / "rows.jsonl"),
            "remote_engine_url": model.url, "remote_buffer_url": server.url,
        }  # fmt: skip
        patient.post(f"{server.url}/start_rollout", json=payload).raise_for_status()
        at = f"{server.url}/v1/tasks/code_tool"
        until(lambda: stats(at).get("stored") == 12, "every trajectory")
        raw = [item for n in range(3) for item in group(at, f"product-{n}")]
        batch = patient.post(f"{at}/take", json={}).json()
    worker_client.close()
    for item in raw:
        roles = [turn["role"] for turn in item["messages"]]
        assert roles == ["user", "assistant", "user", "assistant"]
        number = int(item["instance_id"].removeprefix("product-"))
        assert item["messages"][2]["content"] == f"Output:\n{number * 17}\n"
    assert sorted(item["reward"] for item in raw) == [0.0] * 6 + [1.0] * 6
    delivered = {found["instance_id"]: len(found["items"]) for found in batch["groups"]}
    assert delivered == {f"product-{n}": 4 for n in range(3)}


def stats(at: str) -> dict[str, int]:
    found: dict[str, int] = patient.get(f"{at}/stats").json()
    return found


def group(at: str, name: str) -> list[dict[str, Any]]:
    answer = patient.get(f"{at}/group", params={"instance_id": name})
    found: list[dict[str, Any]] = answer.json()["items"]
    return found
