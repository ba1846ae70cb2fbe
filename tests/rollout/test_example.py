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


def test_by_a_flag_another_model_plays_and_its_batch_can_be_taken_up(tmp_path: Path) -> None:
    kept = ("--rollout-data-dir", str(tmp_path))
    with script(said(in_text("print(2 * 45)")), said("#### 90")) as model:
        printed = run("--base-url", model.url, *kept)
        assert printed.splitlines()[-1] == "4 rollouts, 0 masked, mean score 0.25"
        assert len(model.requests) == 8
        lines = (tmp_path / "1.jsonl").read_text().splitlines()
        (tmp_path / "1.jsonl").write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])
        assert "1 rollouts, 0 masked" in run("--base-url", model.url, *kept)
        assert len(model.requests) == 10
    rows = [json.loads(line) for line in (tmp_path / "1.jsonl").read_text().splitlines()]
    assert sorted(row["score"] for row in rows) == [0.0, 0.0, 0.0, 1.0]
    assert all("\ntool\n90\n" in row["output"] for row in rows)
    assert all("# Tools" in row["input"] for row in rows)
