"""Ctrl-C in a real terminal, at any moment of what lasts: no traceback, and nothing left.

The moment is drawn anew each time, and is in the message of what fails.
"""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGES, ROOT
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, free_port, until
from tests.harness.terminal import Terminal
from tests.penstock.commands import processes_of

LASTING = {
    "buffer serve": ["buffer", "serve"],
    "demo": ["demo"],
    "doctor": ["doctor"],
    "monitor": ["monitor"],
    "run": ["run", "--wait", "program.py"],
    "sandbox serve": ["sandbox", "serve", "--port", "0"],
    "top": ["top"],
    "up": ["up", "--workers", "1"],
    "worker": ["worker", "--sandbox", "local"],
}
# Ctrl-C is how these are ended, once they are up.
WELL_ENDED = {"top", "up", "worker"}
# These start no Redis of their own.
LOOKING = {"monitor", "run", "top"}
# Less the few lines that run before anything can listen.
OURS = re.compile(
    rf'File "{re.escape(str(ROOT))}/({"|".join(sorted(PACKAGES))})/(?!(__init__|entry)\.py)'
)


@pytest.fixture(autouse=True)
def _with_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text("print(1)\n")


def interrupted(name: str, folder: Path, moment: float, server: PrivateRedis) -> None:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env = clean | {
        "PENSTOCK_DATA_DIR": str(folder / "state"), "TMPDIR": str(folder),
        "PENSTOCK_BUFFER_PORT": str(free_port()), "PENSTOCK_MONITOR_PORT": str(free_port()),
    }  # fmt: skip
    if name in LOOKING:
        env["PENSTOCK_REDIS_URL"] = server.url
    what = f"`penstock {name}`, interrupted after {moment:.3f} s"
    with Terminal([PENSTOCK, *LASTING[name]], env) as terminal:
        time.sleep(moment)  # not for anything to happen: any moment will do
        terminal.press(Terminal.CTRL_C)
        code = terminal.ends()
    # Before Python runs any of our code it ends as it likes to.
    assert not OURS.search(terminal.said), f"{what}: {terminal.said}"
    done = {0, 1} if name == "doctor" else {0} if name in WELL_ENDED else set()
    assert code in {130, 1, -signal.SIGINT} | done, f"{what}: {code}, {terminal.said}"
    assert code != 1 or name == "doctor" or "Traceback" in terminal.said, f"{what}: {terminal.said}"
    until(lambda: processes_of(folder) == [], f"nothing left of {what}", within=100)


@pytest.mark.parametrize("name", LASTING)
def test_ctrl_c_at_any_moment_is_clean(
    name: str, tmp_path: Path, shared_server: PrivateRedis
) -> None:
    interrupted(name, tmp_path, random.uniform(0, 2.5), shared_server)


@pytest.mark.soak
@pytest.mark.parametrize("name", LASTING)
def test_ctrl_c_at_many_moments_is_clean(
    name: str, tmp_path: Path, shared_server: PrivateRedis
) -> None:
    for _ in range(25):
        interrupted(name, tmp_path, random.uniform(0, 4), shared_server)


def test_a_second_ctrl_c_ends_the_demo_at_once_and_leaves_no_process(tmp_path: Path) -> None:
    with Terminal([PENSTOCK, "demo"], os.environ | {"TMPDIR": str(tmp_path)}) as terminal:
        terminal.until("is up")
        terminal.press(Terminal.CTRL_C)
        terminal.press(Terminal.CTRL_C)
        assert terminal.ends() in (130, -signal.SIGINT), terminal.said
    until(lambda: processes_of(tmp_path) == [], "nothing left", within=100)
