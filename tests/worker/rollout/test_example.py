"""The GSM8K example against a server that is given by a flag, and its trajectories kept."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.harness.nursery import ROOT
from tests.harness.scripted_model import said
from tests.worker.rollout.players import in_text, script
from tests.worker.tool.hosts import load_file


def run(*options: str) -> "subprocess.CompletedProcess[str]":
    """`tests/docs` runs it as it stands."""
    command = [sys.executable, "examples/gsm8k/run.py", *options]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )


def test_by_a_flag_another_model_plays_what_is_left_of_a_batch(tmp_path: Path) -> None:
    file = tmp_path / "1.jsonl"
    file.write_text('{"score": 1.0, "step": 1, "request_id": "gsm8k-0"}\n{"score": 0.0, "st')
    with script(said(in_text("print(2 * 45)")), said("#### 90")) as model:
        done = run("--base-url", model.url, "--rollout-data-dir", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "3 rollouts, 0 masked, mean score 0.33, 1 from before"
    assert len(model.requests) == 6
    kept, *rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert kept["request_id"] == "gsm8k-0"
    assert {row["request_id"]: row["score"] for row in rows} == {
        "gsm8k-1": 0.0, "gsm8k-2": 0.0, "gsm8k-3": 1.0,
    }  # fmt: skip
    assert all("\ntool\n90\n" in row["output"] for row in rows)
    assert all("# Tools" in row["input"] for row in rows)


async def test_a_server_that_is_no_model_is_said_in_a_sentence(monkeypatch) -> None:
    example = load_file(ROOT / "examples" / "gsm8k" / "run.py", "_gsm8k_example")
    nowhere = "http://127.0.0.1:1/v1"
    client = AsyncOpenAI(base_url=nowhere, api_key="-", max_retries=0)
    monkeypatch.setattr(example, "client_of", lambda _: client)
    with pytest.raises(SystemExit, match=f"^{nowhere} names no model, is it an OpenAI-compatible"):
        await example.first_model(nowhere)
