"""`python -m tests.proof`: run the whole of Penstock while everything is broken at random, and
account for all that it promises."""

import argparse
import random
import tempfile
from pathlib import Path

from tests.outside import releases
from tests.proof import observer, page, schedule
from tests.proof.account import Accounts

COUNTS = {"engine": 1, "gateway": 2, "buffer": 2, "worker": 4, "trainer": 2, "generator": 2,
          "client": 2}  # fmt: skip
OLDER = "507352a"  # before the gateway, and before the sandbox was a package


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    options.add_argument("--minutes", type=float, default=60.0)
    options.add_argument("--seed", type=int, help="of what is broken when; default: a new one")
    options.add_argument("--every", type=float, default=3.0, help="seconds from one to the next")
    options.add_argument("--page", type=Path, default=Path("build/proof/index.html"))
    options.add_argument("--folder", type=Path, help="of logs and journals; default: a new one")
    given = options.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix="proof-"))
    print(f"SEED={seed}; logs and journals are in {folder}", flush=True)
    found = prove(folder, seed, given.minutes * 60, given.every, COUNTS, older())
    print(page.summary(found))
    given.page.parent.mkdir(parents=True, exist_ok=True)
    given.page.write_text(page.written(found, seed))
    print(f"the page is {given.page}")
    return 1 if found.faults else 0


def older() -> releases.Release | None:
    """The release that half of the fleet has, installed on its first use."""
    try:
        return releases.installed("older", OLDER)
    except releases.NotAtHand as missing:
        print(f"All of the fleet is of this release. {missing}")
        return None


def prove(
    folder: Path, seed: int, seconds: float, every: float, counts: dict[str, int],
    older: releases.Release | None = None,
) -> Accounts:  # fmt: skip
    """Run it, and account for it."""
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.resolve()
    names = [f"{role}-{n}" for role, count in counts.items() for n in range(count)]
    disturbances = schedule.drawn(seed, seconds, every, names)
    observer.run(folder, seed, counts, disturbances, seconds, older)
    return Accounts(folder)


if __name__ == "__main__":
    raise SystemExit(main())
