"""The task: a repository with a defect, its tests, and the tests that the agent never sees.

Its image is a plain folder with this machine's own Python and shell, since an example should need
no network. A task of yours has an image from `docker save`; nothing else changes.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

NAME = "median-task:1"
ASKED = "test_median.py fails. Repair median.py."
REPOSITORY = {
    "median.py": (
        "def median(numbers):\n"
        "    ordered = sorted(numbers)\n"
        "    return ordered[len(ordered) // 2]\n"
    ),
    "test_median.py": (
        "import unittest\n"
        "from median import median\n\n\n"
        "class Median(unittest.TestCase):\n"
        "    def test_odd(self):\n"
        "        self.assertEqual(median([3, 1, 2]), 2)\n\n"
        "    def test_even(self):\n"
        "        self.assertEqual(median([4, 1, 2, 3]), 2.5)\n"
    ),
}
# They import nothing of the repository, and run its code in a process of its own: code that ends
# its process, or that has the name of a module, does not end the tests.
HIDDEN = """\
import json, subprocess, sys, unittest

CALL = "import json, sys, median; json.dump(median.median(json.load(sys.stdin)), sys.stdout)"


def median(numbers):
    asked = json.dumps(numbers)
    ran = subprocess.run([sys.executable, "-c", CALL], input=asked, capture_output=True, text=True)
    return json.loads(ran.stdout)


class Median(unittest.TestCase):
    def test_all(self):
        for numbers, right in (([3, 1, 2], 2), ([4, 1, 2, 3], 2.5), ([0.5, 1.5], 1.0)):
            self.assertEqual(median(numbers), right)


unittest.main()
"""
HIDDEN_AT = "/root/test_hidden.py"
TESTS, GRADING = "python3 -m unittest -q test_median", f"python3 -I {HIDDEN_AT}"
_TOOLS = ("bash", "cat", "grep", "ls", "rm", "sed")
_UNUSED = ("__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "lib2to3",
           "ensurepip", "pydoc_data", "turtledemo", "config-*")  # fmt: skip


def make_image(root: Path) -> None:
    """The files of the image."""
    python = Path(sys.executable).resolve()
    tools = {name: Path(shutil.which(name) or f"/bin/{name}").resolve() for name in _TOOLS}
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, _at(root, library), ignore=shutil.ignore_patterns(*_UNUSED))
    programs = [python, *tools.values(), *library.glob("lib-dynload/*.so")]
    for path in {*programs, *(one for each in programs for one in _libraries(each))}:
        at = _at(root, path)
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, at)
    (root / "bin").mkdir(exist_ok=True)
    for name, program in {**tools, "sh": tools["bash"], "python3": python}.items():
        if not (link := root / "bin" / name).exists():
            link.symlink_to(program)
    for folder in ("etc", "root", "tmp", "repo"):
        (root / folder).mkdir(exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    for name, text in REPOSITORY.items():
        (root / "repo" / name).write_text(text)


def _at(root: Path, path: Path) -> Path:
    return root / str(path).lstrip("/")


def _libraries(path: Path) -> list[Path]:
    """What it is linked with, as the loader finds it."""
    said = subprocess.run(["ldd", str(path)], capture_output=True, text=True, env={**os.environ})
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", said.stdout)]
