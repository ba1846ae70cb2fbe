"""What a trainer writes down of its steps: `steps.jsonl`, and when each began: `begun.jsonl`."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from examples.unbothered import model, task

EVERY = 10  # steps from one look at the held-out prompts to the next


class Notes:
    """One trainer's notes; the next one goes on in the same files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._began = 0.0
        self._longest: dict[str, float] = {}

    def begin(self, version: int) -> None:
        self._began, self._longest = time.time(), {}
        _add(self._folder / "begun.jsonl", {"version": version, "at": self._began})

    def waited(self, what: str, began: float) -> None:
        """A wait of this step; only the longest of each kind is kept."""
        took = time.monotonic() - began
        self._longest[what] = max(took, self._longest.get(what, 0.0))

    def end(
        self,
        version: int,
        weights: model.Weights,
        prompts: list[task.Prompt],
        rows: list[list[int]],
        rewards: list[float | None],
        old: int = 0,
    ) -> None:
        """One line, before the checkpoint: so every step of that is noted. A reward is false if it
        is not what the answer deserves: `deserved` says so, which asks no sandbox."""
        known = [reward for reward in rewards if reward is not None]
        true = [
            task.deserved(prompts[at // task.SAMPLES], tokens[task.LENGTH + 1 :])
            for at, tokens in enumerate(rows)
        ]
        pairs = list(zip(rewards, true, strict=True))
        line: dict[str, Any] = {
            "version": version,
            "at": time.time(),
            "seconds": time.time() - self._began,
            "longest": self._longest,
            "mean": sum(known) / max(1, len(known)),
            "masked": len(rewards) - len(known),
            "false": sum(given is not None and given != reward for given, reward in pairs),
            "false_zeros": sum(given == 0 and reward > 0 for given, reward in pairs),
            "samples": len(rewards),
            "old": old,  # sampled by older weights than those of this step
            "deserving": sum(reward > 0 for _, reward in pairs),
        }
        if version == 1 or version % EVERY == 0:
            line |= held_out(weights)
        _add(self._folder / "steps.jsonl", line)


def held_out(weights: model.Weights) -> dict[str, float]:
    """By the likeliest answers: the mean reward, and the share of prompts that is solved whole."""
    asked = [task.encoded(prompt) for prompt in task.HELD_OUT]
    found = model.answers(weights, asked, None)
    rewards = [
        task.deserved(prompt, ids) for prompt, (ids, _) in zip(task.HELD_OUT, found, strict=True)
    ]
    return {"held": float(np.mean(rewards)), "whole": float(np.mean(np.array(rewards) == 1))}


def _add(file: Path, line: dict[str, Any]) -> None:
    with open(file, "a") as log:
        log.write(json.dumps(line) + "\n")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    file = folder / f"{name}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
