"""`python -m examples.unbothered`: train from the same seed in several ways, some of them while
everything is killed, and compare weights, rewards and curves."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from examples.unbothered import report
from examples.unbothered.fleet import Fleet, Plain, Training

DEAD = 0.2  # of the control's batches. At 0.05 the harm is within the spread of seeds

# How each run is begun: folder, seed, steps, most seconds.
RUNS: dict[str, Callable[[Path, int, int, float], Training]] = {
    "bare": lambda f, s, n, m: Plain(f, s, n, rewards="deserved", most_seconds=m),
    "undisturbed": lambda f, s, n, m: Fleet(f, s, n, most_seconds=m),
    "killed": lambda f, s, n, m: Fleet(f, s, n, rate=1.0, most_seconds=m),
    "control": lambda f, s, n, m: Plain(
        f, s, n, rewards="zeros", dead=DEAD, rate=1.0, most_seconds=m
    ),
    "masked": lambda f, s, n, m: Plain(f, s, n, rewards="masked", dead=DEAD, most_seconds=m),
    "shuffled": lambda f, s, n, m: Plain(f, s, n, rewards="shuffled", most_seconds=m),
    "tenth": lambda f, s, n, m: Fleet(f, s, n, rate=0.1, most_seconds=m),
    "ahead": lambda f, s, n, m: Fleet(f, s, n, ahead=1, most_seconds=m),
    "ahead-killed": lambda f, s, n, m: Fleet(f, s, n, ahead=1, rate=1.0, most_seconds=m),
}
USUAL = ("bare", "undisturbed", "killed", "control", "masked", "shuffled")


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m examples.unbothered", description=__doc__)
    options.add_argument("--steps", type=int, default=300, help="updates of the weights")
    options.add_argument("--seeds", type=int, default=1, help="how many, from 1")
    options.add_argument(
        "--runs", default=",".join(USUAL), help=f"of {', '.join(RUNS)}; default: %(default)s"
    )
    options.add_argument("--asynchronous", action="store_true", help="ahead and ahead-killed, too")
    options.add_argument(
        "--folder", type=Path, help="for logs and checkpoints; runs that ended there are not run"
    )
    options.add_argument("--picture", type=Path, help="where the curves are drawn")
    options.add_argument("--most-seconds", type=float, default=3600.0, help="of each run")
    given = options.parse_args()
    names = [*given.runs.split(","), *(("ahead", "ahead-killed") if given.asynchronous else ())]
    if unknown := [name for name in names if name not in RUNS]:
        options.error(f"--runs: there is no run {unknown[0]!r}; there are {', '.join(RUNS)}")
    for name in ("steps", "seeds"):
        if (number := getattr(given, name)) < 1:
            options.error(f"--{name}: must be 1 or more, not {number}")
    if given.picture and not given.picture.parent.is_dir():
        options.error(f"--picture: there is no folder {given.picture.parent}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="unbothered-"))
    for ended in folder.glob("seed-*/*/ended.json"):
        steps = json.loads((ended.parent / "run.json").read_text())["steps"]
        if steps != given.steps:
            options.error(
                f"--folder: {ended.parent} ended after {steps} steps, not {given.steps}; "
                "name another folder, or as many steps"
            )
    print(f"logs and checkpoints are in {folder}")
    for seed in range(1, given.seeds + 1):
        for name in names:
            run_one(folder / f"seed-{seed}" / name, name, seed, given.steps, given.most_seconds)
    found = report.read(folder)
    print(report.told(found))
    if report.may_be_drawn(found):
        picture = given.picture or folder / "curves.svg"
        picture.write_text(report.drawn(found))
        print(f"the curves are drawn in {picture}")
    return 0 if report.holds(found) else 1


def run_one(folder: Path, name: str, seed: int, steps: int, most_seconds: float) -> None:
    """One training, unless it has ended in that folder before. One that was interrupted begins
    at its first step."""
    ended = folder / "ended.json"
    if ended.exists():
        return
    if folder.exists():
        shutil.rmtree(folder)
    print(f"seed {seed}, {name} …", end=" ", flush=True)
    with RUNS[name](folder, seed, steps, most_seconds) as training:
        seconds = training.run()
        about = {
            "seconds": seconds, "kills": dict(training.kills), "sandboxes": training.sandboxes(),
        }  # fmt: skip
    ended.write_text(json.dumps(about))
    print(f"{seconds:.0f} s")


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
