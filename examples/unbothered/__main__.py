"""`python -m examples.unbothered`: train twice from the same seed, once while everything is killed,
and compare the weights bit for bit."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from examples.unbothered import model
from examples.unbothered.fleet import Fleet


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m examples.unbothered", description=__doc__)
    options.add_argument("--steps", type=int, default=24, help="updates of the weights")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--folder", type=Path, help="for logs and checkpoints; it must be new")
    options.add_argument("--most-seconds", type=float, default=3600.0, help="of each run")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="unbothered-"))
    print(f"logs and checkpoints are in {folder}")
    for name, chaos in (("undisturbed", None), ("killed", given.seed)):
        with Fleet(
            folder / name, given.seed, given.steps, most_seconds=given.most_seconds
        ) as fleet:
            seconds = fleet.run(chaos=chaos, steps=given.steps)
            kills = ", ".join(f"{kind} {count}" for kind, count in fleet.kills.items())
        print(f"{name}: {given.steps} steps in {seconds:.0f} s, {told(folder / name)}")
        if kills:
            print(f"killed with -9: {kills}")
    same = equal(folder / "undisturbed", folder / "killed")
    print("the weights are equal, bit for bit" if same else "the weights DIFFER")
    return 0 if same else 1


def told(folder: Path) -> str:
    """How the rewards went, and how many were masked."""
    steps = [json.loads(line)["rewards"] for line in (folder / "steps.jsonl").open()]
    known = [reward for step in steps for reward in step if reward is not None]
    masked = sum(len(step) for step in steps) - len(known)
    return f"mean reward {sum(known) / max(1, len(known)):.3f}, {masked} masked"


def equal(one: Path, other: Path) -> bool:
    (first, *_), (second, *_) = (model.loaded(each / "checkpoint.npz") for each in (one, other))
    return all(np.array_equal(first[name], second[name]) for name in first)


if __name__ == "__main__":
    sys.exit(main())
