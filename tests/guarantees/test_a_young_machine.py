"""On a machine that started two seconds ago, nothing is taken for done already.

A process's clock counts from the start of its machine. Here it is moved back, in a time namespace.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Tests in which a process does something for the first time, and notes when it did.
FIRST_TIMES = [
    "tests/worker/judging/test_suites.py",
    "tests/jail/fusion/test_endpoints.py",
    "tests/buffer/test_reach.py",
    "tests/limiter/test_faces.py",
]


def started_just_now() -> list[str]:
    """What begins a command whose clock says 2 s."""
    back = 2 - int(time.monotonic())
    return ["unshare", "--user", "--map-root-user", "--time", f"--monotonic={back}"]


def can_move_the_clock() -> bool:
    try:
        return subprocess.run([*started_just_now(), "true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_move_the_clock(), reason="the kernel allows no time namespace here")
@pytest.mark.parametrize("file", FIRST_TIMES)
def test_all_that_is_done_for_the_first_time_is_done(file: str) -> None:
    clock = [*started_just_now(), sys.executable, "-c", "import time; print(time.monotonic())"]
    assert float(subprocess.run(clock, capture_output=True, check=True).stdout) < 100

    pytests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    whole = {**os.environ, "PENSTOCK_TEST_ALL": "1", "PENSTOCK_TEST_REST": ""}
    ran = subprocess.run(
        [*started_just_now(), *pytests, file],
        capture_output=True, text=True, cwd=ROOT, env=whole,
    )  # fmt: skip

    assert ran.returncode == 0, ran.stdout[-4000:]
