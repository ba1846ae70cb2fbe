"""The wheel of a tree, by its build backend itself: no network is asked."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def built(folder: Path, tree: Path = ROOT) -> Path:
    """Made in that folder, in which no other is."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(build, cwd=tree, stdout=-1, stderr=-2, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
    (wheel,) = folder.glob("penstock_rl-*.whl")
    return wheel
