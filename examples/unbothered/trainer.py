"""The trainer: `python -m examples.unbothered.trainer FOLDER`, killed and started as often as you
like.

    prompts of the step → sessions at the gateway → programs → grades by the queue
    → rows in the buffer → one update → a checkpoint → the next version

What a step does is a function of the checkpoint and the step's number. It is done again from the
checkpoint if the trainer dies: sessions and items are known by their ids, so nothing counts twice.
"""

import asyncio
import contextlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from buffer import Policy, RolloutBuffer, TaskConfig
from examples.unbothered import model, task
from gateway.items import rows_in
from gateway.packing import spread
from ground.settings import redis_url
from worker.hosts import Grader

TASK = "steps"
PROMPTS, SAMPLES = 8, 8


@dataclass(frozen=True)
class Run:
    """Where everything is, as the fleet wrote it down."""

    folder: Path
    seed: int
    steps: int
    gateway: str
    engine: str

    @classmethod
    def of(cls, folder: Path) -> "Run":
        return cls(folder, **json.loads((folder / "run.json").read_text()))

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.npz"


class Rollouts:
    """One step's samples, from the prompt to the buffer."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._http = httpx.AsyncClient(
            timeout=60, limits=httpx.Limits(max_connections=None), trust_env=False
        )
        self._grader = Grader(on=redis_url(), fenced=False, case_timeout=5.0, timeout=600.0)

    async def step(self, version: int, prompts: list[task.Prompt]) -> None:
        await asyncio.gather(
            *(
                self._sample(version, number, prompt, sample)
                for number, prompt in enumerate(prompts)
                for sample in range(SAMPLES)
            )
        )

    async def _sample(self, version: int, number: int, prompt: task.Prompt, sample: int) -> None:
        seed = (self._run.seed * 1_000_000 + version * PROMPTS + number) * SAMPLES + sample
        asked = {
            "uid": f"{version}-{number}-{sample}", "instance_id": f"{version}-{number}",
            "sampling": {"seed": seed, "max_tokens": task.LONGEST},
        }  # fmt: skip
        sessions = f"{self._run.gateway}/tasks/{TASK}/sessions"
        opened = await self._asked("POST", sessions, asked)
        session = f"{sessions}/{opened['session']}"
        if "key" in opened:
            answer = await self._asked(
                "POST", f"{self._run.gateway}/v1/chat/completions",
                {"model": "steps", "messages": [{"role": "user", "content": " ".join(prompt)}]},
                {"authorization": f"Bearer {opened['key']}", "idempotency-key": asked["uid"]},
            )  # fmt: skip
            text = answer["choices"][0]["message"]["content"]
        elif opened["state"] == "final":
            return  # before the trainer died
        else:  # it died as the session was finalized
            (row,) = (await self._asked("GET", f"{session}?tokens=true"))["rows"]
            text = task.written([id for id in row["ids"][task.LENGTH + 1 :] if id != task.END])
        grade = await self._grader.grade(task.program(text), task.cases(prompt))
        place = {"number": number, "sample": sample}
        await self._asked("POST", f"{session}/finalize", {"reward": grade.value, "extra": place})

    async def _asked(self, method: str, url: str, body: Any = None, headers: Any = None) -> Any:
        """The answer, or what is said of a session that is over. A gateway that was killed comes
        back, so what fails for that reason is asked again."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = await self._http.request(method, url, json=body, headers=headers)
                if answer.status_code == httpx.codes.CONFLICT:
                    return answer.json()["data"]
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer.raise_for_status().json()
            await asyncio.sleep(0.2)


async def train(run: Run) -> None:
    weights, adam, said = model.loaded(run.checkpoint)
    version = said["version"]
    buffer = RolloutBuffer(redis_url(), TASK, TaskConfig(group_size=SAMPLES, dialect="v1"))
    await buffer.config()
    # `drop`: what is in a checkpoint, and was not acknowledged before the trainer died, is too old.
    await buffer.set_policy(Policy(groups_per_version=PROMPTS, max_age=0, when_old="drop"))
    rollouts, lead = Rollouts(run), True
    async with httpx.AsyncClient(timeout=60, trust_env=False) as engine:
        while version < run.steps:
            began = time.monotonic()
            update = {"model_path": str(run.checkpoint), "weight_version": str(version)}
            (
                await engine.post(f"{run.engine}/update_weights_from_disk", json=update)
            ).raise_for_status()
            await buffer.publish(version, saved=version, lead=lead)
            lead = False
            await rollouts.step(version, task.drawn(run.seed, version, PROMPTS))
            batches, items = [], []
            while len(items) < PROMPTS * SAMPLES:
                if batch := await buffer.take(PROMPTS - len(items) // SAMPLES, wait=60):
                    batches.append(batch)
                    items += batch.items
            adam.step(weights, model.gradient(weights, rows_of(items)))
            rewards = [item.get("reward") for item in sorted(items, key=lambda item: item["uid"])]
            version += 1
            model.saved(run.checkpoint, weights, adam, {"version": version})
            noted(run.folder, version, rewards, time.monotonic() - began)
            for batch in batches:
                await buffer.ack(batch)
    await buffer.aclose()


def rows_of(items: list[dict[str, Any]]) -> list[tuple[list[int], int, float]]:
    """In the order of their samples, whatever came first."""
    rows = []
    ordered = sorted(items, key=lambda item: (item["number"], item["sample"]))
    for first in range(0, len(ordered), SAMPLES):
        group = ordered[first : first + SAMPLES]
        found = [rows_in(item)[0] for item in group]
        known = model.advantages([None if row.masked else reward for row, reward in found])
        for (row, _), advantage in zip(found, known, strict=True):
            live = sum(spread(row.mask)) > 0
            rows.append((list(row.tokens), task.LENGTH + 1, advantage if live else 0.0))
    return rows


def noted(folder: Path, version: int, rewards: list[float | None], seconds: float) -> None:
    line = {"version": version, "rewards": rewards, "seconds": round(seconds, 3), "at": time.time()}
    with open(folder / "steps.jsonl", "a") as log:
        log.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    asyncio.run(train(Run.of(Path(sys.argv[1]))))
