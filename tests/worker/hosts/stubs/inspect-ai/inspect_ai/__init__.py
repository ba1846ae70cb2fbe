"""As much of inspect-ai as our adapter and its page use: a stand-in, for tests without it."""

import asyncio
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from inspect_ai import util
from inspect_ai.dataset import Sample
from inspect_ai.model import Model, TaskState


@dataclass
class Task:
    dataset: list[Sample]
    scorer: Callable[..., Any] | None = None
    sandbox: str = ""


def task(function: Callable[[], Task]) -> Callable[[], Task]:
    return function


@dataclass
class Log:
    status: str
    results: Any = None
    samples: list[Any] = field(default_factory=list)


def eval(given: Task, model: Model, display: str = "") -> list[Log]:
    for entry in importlib.metadata.entry_points(group="inspect_ai"):
        entry.load()
    return [asyncio.run(_run(given, util.registered[given.sandbox], model))]


async def _run(given: Task, sandboxes: Any, model: Model) -> Log:
    await sandboxes.task_init("task", None)
    scores = []
    for sample in given.dataset:
        boxes = await sandboxes.sample_init("task", None, {})
        util.current.set(boxes["default"])
        try:
            state = TaskState(model.generate())
            scores.append(await given.scorer(state, SimpleNamespace(text=sample.target)))
        finally:
            await sandboxes.sample_cleanup("task", None, boxes, False)
    accuracy = sum(score.value for score in scores) / len(scores)
    metrics = {"accuracy": SimpleNamespace(value=float(accuracy))}
    return Log("success", SimpleNamespace(scores=[SimpleNamespace(metrics=metrics)]))
