"""The gauntlet: its programs are well formed, its runner counts, and Penstock's doors hold."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.gauntlet.gauntlet import HERE, entries

ENTRIES = list(entries())
# What assertions leave open that share a process with the program they check, and no others.
OPEN = set((HERE / "open.txt").read_text().split())


def test_there_are_enough_programs_and_each_has_a_name_of_its_own() -> None:
    kinds = Counter(entry.kind for entry in ENTRIES)
    assert kinds["exploit"] >= 120
    assert kinds["honest"] >= 60
    assert set(kinds) == {"exploit", "honest"}
    names = Counter((entry.mode, entry.language, entry.name) for entry in ENTRIES)
    assert [name for name, count in names.items() if count > 1] == []
    assert {entry.right for entry in ENTRIES} == {0, 1}
    assert all(entry.right == 0 for entry in ENTRIES if entry.kind == "exploit")
    assert all(entry.mode == entry.problem["mode"] for entry in ENTRIES)
    assert all(name.startswith("shared/") for name in OPEN)


def test_the_corpus_has_usual_programs_of_each_mode_half_of_them_right() -> None:
    corpus = list(entries(HERE / "corpus"))
    assert Counter(entry.mode for entry in corpus) == {"stdin": 140, "function": 120, "check": 40}
    assert Counter(entry.right for entry in corpus) == {0: 150, 1: 150}


def test_its_runner_counts_what_a_grader_says_and_needs_no_package(tmp_path: Path) -> None:
    grader = tmp_path / "always.py"
    grader.write_text(
        "import os\n"
        "def grade(problem, language, code):\n"
        "    if 'SystemExit(0)' in code: return None\n"
        "    if '_exit' in code: os._exit(3)\n"
        "    return 1.0\n"
    )
    file = tmp_path / "found.json"
    command = [sys.executable, "-I", "-S", str(HERE / "gauntlet.py"), str(grader)]
    ran = subprocess.run(
        [*command, "--only", "check python", "--json", str(file)],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stderr
    said = {row["name"]: row["verdict"] for row in json.loads(file.read_text())}
    assert said["plain"] == "right"
    assert said["off-by-one"] == "false 1"
    assert said["exits-at-import"] == "masked"
    assert said["exits-with-zero"] == "raised"
    assert "false 1" in ran.stdout


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("folder", "wrong"), [(".", OPEN), ("corpus", set())])
def test_penstock_is_right_of_every_program_but_those_that_are_listed(
    tmp_path: Path, folder: str, wrong: set[str]
) -> None:
    file, runner = tmp_path / "found.json", HERE / "gauntlet.py"
    grader = HERE / "graders" / "penstock.py"
    subprocess.run(
        [sys.executable, runner, grader, "--folder", HERE / folder, "--json", file, "--seconds",
         "300"],
        check=False, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    rows = json.loads(file.read_text())
    assert len(rows) == len(list(entries(HERE / folder)))
    assert {f"{row['mode']}/{row['name']}" for row in rows if row["verdict"] != "right"} == wrong
