"""The trainer: `python -m examples.unbothered.trainer FOLDER`, killed and started as often as you
like.

    prompts of the step → sessions at the gateway → programs → batches through the queue
    → rows in the buffer → one update → a checkpoint → the next version

What a step does is a function of the checkpoint and the step's number. It is done again from the
checkpoint if the trainer dies: sessions and items are known by their ids, so nothing counts twice.

With `ahead` 1 the samples of the next step are made while this one is trained. They may be one
version old, and which of them are depends on time.
"""

import asyncio
import contextlib
import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx

from buffer import Policy, RolloutBuffer, TaskConfig
from examples.unbothered import model, task
from examples.unbothered.notes import Notes
from examples.unbothered.task import PROMPTS, SAMPLES
from gateway.items import rows_in
from gateway.packing import spread
from ground import PenstockError
from ground.settings import redis_url
from worker import CodeQueue, CodeRequest

TASK = "steps"
CONNECTIONS = 8


@dataclass(frozen=True)
class Run:
    """Where everything is, as the fleet wrote it down."""

    folder: Path
    seed: int
    steps: int
    ahead: int
    gateway: str
    engine: str

    @classmethod
    def of(cls, folder: Path) -> "Run":
        return cls(folder, **json.loads((folder / "run.json").read_text()))

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.npz"


@dataclass(frozen=True)
class Sampled:
    """An answer that awaits its reward, and the session that it was made in."""

    session: str
    text: str
    place: dict[str, int]


class Rollouts:
    """Samples, from the prompt to the buffer."""

    def __init__(self, run: Run, notes: Notes) -> None:
        self._run, self._notes = run, notes
        self._gateway = Door(run.gateway, notes)
        self._queue = CodeQueue(redis_url(), "code")

    async def step(self, step: int) -> None:
        prompts = task.drawn(self._run.seed, step)
        await asyncio.gather(*(self._batch(step, prompts, sample) for sample in range(SAMPLES)))

    async def _batch(self, step: int, prompts: list[task.Prompt], sample: int) -> None:
        """One sample of each prompt; their programs are one job."""
        found = await asyncio.gather(
            *(self._sample(step, number, prompt, sample) for number, prompt in enumerate(prompts))
        )
        if live := [one for one in found if one]:
            rewards = await self._rewards(live, prompts)
            await asyncio.gather(*map(self._finalize, live, rewards))

    async def _sample(
        self, step: int, number: int, prompt: task.Prompt, sample: int
    ) -> Sampled | None:
        seed = task.sampling_seed(self._run.seed, step, number, sample)
        asked = {
            "uid": f"{step}-{number}-{sample}", "instance_id": f"{step}-{number}",
            "sampling": {"seed": seed, "max_tokens": task.LONGEST},
        }  # fmt: skip
        sessions = f"/tasks/{TASK}/sessions"
        opened = await self._gateway.ask("POST", sessions, asked)
        session = f"{sessions}/{opened['session']}"
        if "key" in opened:
            answer = await self._gateway.ask(
                "POST", "/v1/chat/completions",
                {"model": "steps", "messages": [{"role": "user", "content": " ".join(prompt)}]},
                {"authorization": f"Bearer {opened['key']}", "idempotency-key": asked["uid"]},
            )  # fmt: skip
            text = answer["choices"][0]["message"]["content"]
        elif opened["state"] == "final":
            return None  # before the trainer died
        else:  # it died as the session was finalized
            (row,) = (await self._gateway.ask("GET", f"{session}?tokens=true"))["rows"]
            text = task.written([id for id in row["ids"][task.LENGTH + 1 :] if id != task.END])
        return Sampled(session, text, {"step": step, "number": number, "sample": sample})

    async def _rewards(
        self, batch: list[Sampled], prompts: list[task.Prompt]
    ) -> list[float | None]:
        """By the values that the programs gave. None if they could not be run: masked."""
        began = time.monotonic()
        stdin = task.batch([one.text for one in batch])
        try:
            ran = await self._queue.run(CodeRequest(code=task.BATCH, stdin=stdin))
        except PenstockError:
            return [None] * len(batch)
        self._notes.waited("judge", began)
        if not ran.ok:
            return [None] * len(batch)
        return [
            task.reward(prompts[one.place["number"]], values)
            for one, values in zip(batch, json.loads(ran.stdout), strict=True)
        ]

    async def _finalize(self, one: Sampled, reward: float | None) -> None:
        said = {"reward": reward, "extra": one.place}
        await self._gateway.ask("POST", f"{one.session}/finalize", said)


class Door:
    """The gateway's HTTP, in few threads: two hundred requests of a step cost a client library more
    than the gateway."""

    def __init__(self, url: str, notes: Notes) -> None:
        self._host, self._notes = url.removeprefix("http://"), notes
        self._threads = ThreadPoolExecutor(CONNECTIONS)
        self._thread = threading.local()

    async def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        """The answer, or what is said of a session that is over."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ask, method, path, body, headers)

    def _ask(self, method: str, path: str, body: Any, headers: Any) -> Any:
        began = time.monotonic()
        while True:
            # A gateway that was killed comes back, so what fails for that reason is asked again.
            with contextlib.suppress(OSError, HTTPException):
                status, answer = self._once(method, path, json.dumps(body).encode(), headers or {})
                if status == HTTPStatus.CONFLICT:
                    return answer["data"]
                if status < 500 and status != HTTPStatus.TOO_MANY_REQUESTS:
                    self._notes.waited("ask", began)
                    if status >= 400:
                        raise ValueError(f"{method} {path}: {status} {answer}")
                    return answer
            time.sleep(0.2)

    def _once(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Any:
        line = getattr(self._thread, "line", None)
        if line is None:
            line = self._thread.line = HTTPConnection(self._host, timeout=60)
        try:
            line.request(method, path, body, headers | {"content-type": "application/json"})
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        except BaseException:
            line.close()  # the next request opens it
            raise


class Hand:
    """What was taken from the buffer, and is not trained on yet."""

    def __init__(self, buffer: RolloutBuffer) -> None:
        self._buffer = buffer
        self._batches: list[Any] = []

    async def of(self, step: int) -> list[dict[str, Any]]:
        """All samples of a step, in their order; it waits for them."""
        while True:
            items = [item for batch in self._batches for item in batch.items]
            found = [item for item in items if item["step"] == step]
            if len(found) == PROMPTS * SAMPLES:
                return sorted(found, key=lambda item: (item["number"], item["sample"]))
            if batch := await self._buffer.take(PROMPTS, wait=60):
                self._batches.append(batch)

    async def trained(self, step: int) -> None:
        """Acknowledges what holds nothing of later steps."""
        for batch in list(self._batches):
            if all(item["step"] <= step for item in batch.items):
                await self._buffer.ack(batch)
                self._batches.remove(batch)


async def train(run: Run) -> None:
    weights, adam, said = model.loaded(run.checkpoint)
    version, notes = said["version"], Notes(run.folder)
    buffer = RolloutBuffer(redis_url(), TASK, TaskConfig(group_size=SAMPLES, dialect="v1"))
    await buffer.config()
    # `drop`: what is in a checkpoint, and was not acknowledged before the trainer died, is too old.
    await buffer.set_policy(
        Policy(groups_per_version=PROMPTS * (1 + 2 * run.ahead), max_age=run.ahead, when_old="drop")
    )
    rollouts, hand, lead = Rollouts(run, notes), Hand(buffer), True
    under_way: dict[int, asyncio.Task[None]] = {}
    async with httpx.AsyncClient(timeout=60, trust_env=False) as engine:
        while version < run.steps:
            notes.begin(version)
            await buffer.publish(version, saved=version, lead=lead)
            lead = False
            update = {"model_path": str(run.checkpoint), "weight_version": str(version)}
            done = await engine.post(f"{run.engine}/update_weights_from_disk", json=update)
            done.raise_for_status()
            for step in range(version, min(version + run.ahead + 1, run.steps)):
                if step not in under_way:
                    under_way[step] = asyncio.create_task(rollouts.step(step))
            await under_way.pop(version)
            items = await hand.of(version)
            prompts = task.drawn(run.seed, version)
            rows, rewards = rows_of(items)
            adam.step(weights, model.gradient(weights, rows))
            step, version = version, version + 1
            old = sum(sampled_by(item) < step for item in items)
            notes.end(version, weights, prompts, [row[0] for row in rows], rewards, old)
            model.saved(run.checkpoint, weights, adam, {"version": version})
            await hand.trained(step)
    await buffer.aclose()


def sampled_by(item: dict[str, Any]) -> int:
    """The oldest version of the weights that a token of it was sampled by."""
    versions: list[int] = [version for _, version in item["versions"][0] if version >= 0]
    return min(versions)


def rows_of(items: list[dict[str, Any]]) -> tuple[list[model.Row], list[float | None]]:
    """What is trained on, with its advantages; and the rewards."""
    rows, rewards = list[model.Row](), list[float | None]()
    for first in range(0, len(items), SAMPLES):
        found = [rows_in(item)[0] for item in items[first : first + SAMPLES]]
        group = [
            None if row.masked or not sum(spread(row.mask)) else reward for row, reward in found
        ]
        rewards += group
        for (row, _), advantage in zip(found, model.advantages(group), strict=True):
            rows.append((list(row.tokens), task.LENGTH + 1, advantage))
    return rows, rewards


if __name__ == "__main__":
    asyncio.run(train(Run.of(Path(sys.argv[1]))))
