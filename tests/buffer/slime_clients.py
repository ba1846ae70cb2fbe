"""slime's two rollout-side clients, as their contract describes them.

Both post numbers as strings, fetch with `{}` until they have enough items, check the
keys they read, keep the newest whole groups, and remember every finished id for the
next start. v0 also reads `raw_reward`; v1 insists on more items than groups.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness import patient
from tests.harness.scripted_model import Answer, said
from tests.harness.servers import until

REQUIRED = {"uid", "instance_id", "messages", "reward", "extra_info"}


@dataclass
class SlimeClient:
    """A trainer's side of one run. `metadata` is what slime keeps in its checkpoint."""

    url: str
    engine_url: str
    input_file: str
    version: str = "v0"
    dialect: str = ""
    n_samples_per_prompt: int = 4
    rollout_batch_size: int = 2
    num_epoch: int = 1
    metadata: dict[str, list[Any]] = field(default_factory=dict)
    fetched: list[dict[str, Any]] = field(default_factory=list)

    def start(self) -> None:
        payload = {
            "num_process": "2",
            "num_epoch": str(self.num_epoch),
            "remote_engine_url": self.engine_url,
            "remote_buffer_url": self.url,
            "task_type": "math",
            "input_file": self.input_file,
            "num_repeat_per_sample": str(self.n_samples_per_prompt),
            "max_tokens": "64",
            "sampling_params": {"max_tokens": 64, "temperature": 0.8, "top_p": 1.0},
            "tokenizer_path": "/nowhere",
            "skip_instance_ids": [i for ids in self.metadata.values() for i in ids],
        }
        if self.dialect:
            payload["dialect"] = self.dialect
        answer = patient.post(f"{self.url}/start_rollout", json=payload)
        answer.raise_for_status()
        assert answer.json() == {"message": "Rollout started"}

    def rollout(self, rollout_id: int) -> list[list[dict[str, Any]]]:
        """One step's groups."""
        need = self.rollout_batch_size * self.n_samples_per_prompt
        infos: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        until(lambda: self._fetch(results, infos) or len(results) >= need, f"{need} items", 60)
        self.metadata[str(rollout_id)] = [i for info in infos for i in info["finished_groups"]]
        total = sum(info["total_samples"] for info in infos)
        assert sum(info["avg_reward"] * info["total_samples"] for info in infos) <= total
        self.fetched += results
        return self._newest(results)

    def _fetch(self, results: list[dict[str, Any]], infos: list[dict[str, Any]]) -> bool:
        answer = patient.post(f"{self.url}/get_rollout_data", json={})
        answer.raise_for_status()
        said = answer.json()
        if said["success"]:
            for item in said["data"]["data"]:
                assert set(item) >= REQUIRED
                assert self.dialect == "v1" or "raw_reward" in item
            results += said["data"]["data"]
            infos.append(said["data"]["meta_info"])
        return False

    def _newest(self, results: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        assert self.rollout_batch_size < len(results)
        groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for item in results:
            groups[item["instance_id"]].append(item)
        newest = sorted(
            groups.values(),
            key=lambda group: max(float(item["extra_info"]["timestamp"]) for item in group),
            reverse=True,
        )[: self.rollout_batch_size]
        assert all(len(group) == self.n_samples_per_prompt for group in newest)
        return newest


def sums(asked: dict[str, Any], number: int) -> Answer:
    """Right every other time, so that each group's rewards differ."""
    one, other = (int(n) for n in asked["messages"][0]["content"].split("+"))
    return said(f"It is \\boxed{{{one + other + number % 2}}}.")


def questions(folder: Path, size: int) -> str:
    rows = [
        {"instance_id": f"math_{n}", "prompt": [{"role": "user", "content": f"{n}+1"}],
         "label": str(n + 1)}
        for n in range(size)
    ]  # fmt: skip
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "sums.jsonl")
