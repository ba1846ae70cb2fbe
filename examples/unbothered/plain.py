"""The control: `python -m examples.unbothered.plain FOLDER`, the same training in the plain way.

Same model, task, seeds, batches and checkpoints. But a batch runs in a subprocess here, what fails
has the reward 0, and samples are in the trainer's memory. `rewards` in `run.json` is one of:

    zeros     a share `dead` of the subprocesses is killed, and the rewards of its batch are 0
    masked    the same batches have no rewards; those of the others are found without a subprocess
    shuffled  rewards of other answers
    deserved  the rewards that the answers deserve
"""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from examples.unbothered import model, task
from examples.unbothered.notes import Notes
from examples.unbothered.task import PROMPTS, SAMPLES

Batch = list[tuple[task.Prompt, list[int]]]  # prompts, and the tokens of their answers


def subprocess_rewards(batch: Batch, dies: bool) -> list[float]:
    """As one writes it: what fails, for whatever reason, is worth nothing."""
    answers = [task.written([id for id in ids if id != task.END]) for _, ids in batch]
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", task.BATCH],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        if dies:
            process.kill()
        found = json.loads(process.communicate(task.batch(answers), timeout=10)[0])
        return [
            task.reward(prompt, values) for (prompt, _), values in zip(batch, found, strict=True)
        ]
    except Exception:  # noqa: BLE001 - this is what the control is for
        return [0.0] * len(batch)


def dies(run: dict[str, Any], step: int, sample: int) -> bool:
    """Whether the failures of this run hit a batch; a step that is done again meets the same."""
    return random.Random(f"dies {run['seed']} {step} {sample}").random() < float(run["dead"])


def train(folder: Path) -> None:
    run = json.loads((folder / "run.json").read_text())
    weights, adam, said = model.loaded(folder / "checkpoint.npz")
    notes, threads = Notes(folder), ThreadPoolExecutor(2)
    for step in range(said["version"], run["steps"]):
        notes.begin(step)
        prompts = task.drawn(run["seed"], step)
        places = [(number, sample) for number in range(PROMPTS) for sample in range(SAMPLES)]
        asked = [prompts[number] for number, _ in places]
        tokens = [task.encoded(prompt) for prompt in asked]
        draws = [
            model.drawing(task.sampling_seed(run["seed"], step, *place), prompt)
            for place, prompt in zip(places, tokens, strict=True)
        ]
        ids = [answer for answer, _ in model.answers(weights, tokens, draws)]
        dead = [dies(run, step, sample) for sample in range(SAMPLES)]
        rewards: list[float | None]
        if run["rewards"] == "zeros":
            pairs = list(zip(asked, ids, strict=True))
            batches = [pairs[sample::SAMPLES] for sample in range(SAMPLES)]
            found = list(threads.map(subprocess_rewards, batches, dead))
            rewards = [found[sample][number] for number, sample in places]
        else:
            rewards = list(map(task.deserved, asked, ids))
        if run["rewards"] == "masked":
            rewards = [
                None if dead[sample] else reward
                for (_, sample), reward in zip(places, rewards, strict=True)
            ]
        if run["rewards"] == "shuffled":
            random.Random(f"shuffled {run['seed']} {step}").shuffle(rewards)
        rows: list[model.Row] = []
        for first in range(0, len(ids), SAMPLES):
            group = slice(first, first + SAMPLES)
            for prompt, answer, advantage in zip(
                tokens[group], ids[group], model.advantages(rewards[group]), strict=True
            ):
                rows.append(([*prompt, *answer], len(prompt), advantage))
        adam.step(weights, model.gradient(weights, rows))
        notes.end(step + 1, weights, prompts, [row[0] for row in rows], rewards)
        model.saved(folder / "checkpoint.npz", weights, adam, {"version": step + 1})


if __name__ == "__main__":
    train(Path(sys.argv[1]))
