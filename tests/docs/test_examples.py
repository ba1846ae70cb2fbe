"""Each example runs from anywhere, and prints what its docstring says it prints."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.architecture.source import ROOT
from tests.docs.blocks import matches
from tests.harness.servers import PrivateRedis
from tests.worker.tool.hosts import load_file

EXAMPLES = sorted(
    file for pattern in ("*.py", "*/run.py") for file in (ROOT / "examples").glob(pattern)
)


@pytest.mark.parametrize(
    "example", EXAMPLES, ids=lambda example: example.relative_to(ROOT / "examples").as_posix()
)
def test_an_example_prints_what_it_says(example: Path, tmp_path: Path) -> None:
    said = re.search(
        r"It prints\n\n((?:    .*\n?)+)", ast.get_docstring(ast.parse(example.read_text())) or ""
    )
    assert said, "say in the docstring what it prints"
    run = subprocess.run(
        [sys.executable, example],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert matches(dedent(said[1]), run.stdout), run.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_coding_agent_is_trained_again_on_the_same_redis(shared_server: PrivateRedis) -> None:
    command = [sys.executable, ROOT / "examples/coding_agent/run.py", shared_server.url]
    for _ in range(2):
        run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
        assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("name", ["median.py", "json.py", "unittest.py"])
def test_code_that_ends_its_process_passes_no_hidden_test_of_the_coding_agent(
    name: str, tmp_path: Path
) -> None:
    task = load_file(ROOT / "examples/coding_agent/task.py", "coding_agent_task")
    (tests := tmp_path / "test_hidden.py").write_text(task.HIDDEN)
    grading = [sys.executable, *task.GRADING.replace(task.HIDDEN_AT, str(tests)).split()[1:]]
    (repository := tmp_path / "repo").mkdir()
    (repository / "median.py").write_text("from statistics import median")
    assert subprocess.run(grading, cwd=repository, check=False).returncode == 0
    (repository / "median.py").write_text("median = sum")
    (repository / name).write_text("import os; os._exit(0)")
    assert subprocess.run(grading, cwd=repository, check=False).returncode == 1


def test_there_are_examples() -> None:
    assert EXAMPLES
