"""The GSM8K example against a server that is given by a flag, and its trajectories kept."""

import json
import subprocess
import sys
from pathlib import Path

from tests.harness.killing import ROOT
from tests.harness.scripted_model import said
from tests.rollout.players import in_text, script


def run(*options: str) -> str:
    """What it prints; `tests/docs` runs it as it stands."""
    command = [sys.executable, "examples/gsm8k/run.py", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_by_a_flag_another_model_plays_what_is_left_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text('{"score": 1.0, "step": 1, "request_id": "gsm8k-0"}\n{"score": 0.0, "st')
    with script(said(in_text("print(2 * 45)")), said("#### 90")) as model:
        printed = run("--base-url", model.url, "--rollout-data-dir", str(tmp_path))
    assert printed.splitlines()[-1] == "3 rollouts, 0 masked, mean score 0.33, 1 from before"
    assert len(model.requests) == 6
    kept, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept["request_id"] == "gsm8k-0"
    assert {row["request_id"]: row["score"] for row in rows} == {
        "gsm8k-1": 0.0, "gsm8k-2": 0.0, "gsm8k-3": 1.0,
    }  # fmt: skip
    assert all("\ntool\n90\n" in row["output"] for row in rows)
    assert all("# Tools" in row["input"] for row in rows)
