"""This release and an earlier one, each installed by itself from its wheel."""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.harness import leash
from tests.harness.wheel import built

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "releases"
PARTS = Path(__file__).parent / "parts.py"
# As long as nothing is tagged: the tree before its ways were made one.
LAST = os.environ.get("PENSTOCK_LAST_RELEASE", "c035fe3e")


class NotAtHand(Exception):
    """That revision cannot be had on this machine."""


class NotInThisClone(NotAtHand):
    """git does not have it."""


@dataclass(frozen=True)
class Release:
    name: str
    bin: Path

    @property
    def packages(self) -> Path:
        """The folder that its modules are in, without our tests."""
        return next(self.bin.parent.glob("lib/python*/site-packages"))

    def begin(self, words: list[str], url: str, folder: Path) -> "subprocess.Popen[bytes]":
        """`penstock …` of this release, on the leash; what it says is appended to a log."""
        return self._begin(["-m", "penstock", *words], url, folder, words[0])

    def part(self, words: list[str], url: str, folder: Path) -> "subprocess.Popen[bytes]":
        return self._begin([str(PARTS), *words], url, folder, f"{words[0]}-{words[3]}")

    def _begin(self, words: list[str], url: str, folder: Path, name: str) -> Any:
        kept = {name: os.environ[name] for name in ("HOME", "PATH", "LANG") if name in os.environ}
        own = {
            "PENSTOCK_REDIS_URL": url, "PENSTOCK_LOCAL_SANDBOXES": str(folder / "boxes"),
            "PENSTOCK_SANDBOX_LEASE": "5", "PENSTOCK_JOB_LEASE": "5",
        }  # fmt: skip
        with (folder / f"{name}-{self.name}.log").open("ab") as log:
            command = [str(self.bin / "python"), *words]
            return leash.start(command, cwd=folder, env=kept | own, stdout=log, stderr=log)


def both() -> tuple[Release, Release]:
    try:
        return installed("last", LAST), installed("this", None)
    except NotInThisClone as missing:
        shallow = ["git", "rev-parse", "--is-shallow-repository"]
        is_whole = subprocess.check_output(shallow, cwd=ROOT, text=True).strip() == "false"
        pytest.fail(str(missing), pytrace=False) if is_whole else pytest.skip(str(missing))


def installed(name: str, revision: str | None) -> Release:
    """The environment of a revision is kept; that of this tree is made each time."""
    folder = HOME / (revision or "here")
    if revision is None or not (folder / "made").exists():
        shutil.rmtree(folder, ignore_errors=True)
        tree = ROOT if revision is None else _unpacked(revision, folder / "tree")
        _say(sys.executable, "-m", "venv", str(folder / "venv"))
        wheel = built(folder, tree)
        pip = [str(folder / "venv/bin/python"), "-m", "pip", "--quiet", "install"]
        _say(*pip, f"{wheel}[fast,serve]")
        (folder / "made").touch()
    return Release(name, folder / "venv/bin")


def _unpacked(revision: str, folder: Path) -> Path:
    asked = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, stdout=-1, stderr=-1, check=False
    )
    if asked.returncode != 0:
        raise NotInThisClone(f"this clone lacks {revision}: run `git fetch --unshallow --tags`")
    with tarfile.open(fileobj=BytesIO(asked.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _say(*command: str, **more: Any) -> None:
    ran = subprocess.run(command, stdout=-1, stderr=-2, text=True, check=False, **more)
    if ran.returncode != 0:
        raise NotAtHand(f"{command}\n{ran.stdout}")
