"""GSM8K with a code interpreter and a tool that checks the answer, end to end.

    python examples/gsm8k/run.py
    python examples/gsm8k/run.py --base-url http://host:8000/v1

Programs pass queue, gate and worker, and run in the embedded sandbox, all of it started
here. Without `--base-url` the model is a scripted one, and nothing is needed from outside.
It prints

    John    1.0  stop   1 program
    baker   1.0  stop   1 program
    tank    1.0  stop   2 programs
    Lena    0.0  stop   0 programs
    4 rollouts, 0 masked, mean score 0.75

`--rollout-data-dir DIR` keeps the trajectories, and continues from those that are there.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, OpenAIError

sys.path.insert(0, str(Path(__file__).parent))

import scripted_model

from ground import EmbeddedServer
from worker.rollout import (
    Batch,
    Gsm8kTool,
    Rollout,
    RolloutRequest,
    Trajectory,
    gsm8k_score,
    run_batch,
)
from worker.tool import SandboxFusionTool

SYSTEM = (
    "You are a math expert. You are given a question and you need to solve it step by step."
    " Reasoning step by step before any tool call. You should use the `calc_gsm8k_reward` tool"
    " after step by step solving the question, before generate final answer at least once and"
    " refine your answer if necessary. Put your final answer in the format of `#### <answer>`."
)
QUESTIONS = Path(__file__).with_name("questions.jsonl")
PERMITS = 2  # programs that run at once


def requests(rollout: Rollout) -> list[RolloutRequest]:
    """One for each question; its number is its id, so that a batch can be resumed."""
    samples = [json.loads(line) for line in QUESTIONS.read_text().splitlines()]
    return [
        rollout.request(
            [{"role": "system", "content": SYSTEM}, {"role": "user", "content": s["question"]}],
            request_id=f"gsm8k-{number}",
            tools_kwargs={"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": s["answer"]}}},
            max_seq_len=8192,
            max_turns=8,
            sampling={"temperature": 0.7, "max_tokens": 2048},
            step=1,
            data=s,
        )
        for number, s in enumerate(samples)
    ]


def grade(trajectory: Trajectory) -> float:
    return gsm8k_score(trajectory.answer, trajectory.request.data["answer"])


def client_of(base_url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=base_url, api_key=os.environ.get("OPENAI_API_KEY", "-"))


async def first_model(base_url: str) -> str:
    async with client_of(base_url) as client:
        try:
            return (await client.models.list()).data[0].id
        except (OpenAIError, LookupError, AttributeError, TypeError) as problem:
            sys.exit(
                f"{base_url} names no model, is it an OpenAI-compatible server, /v1 included? "
                f"{type(problem).__name__}: {problem}"
            )


async def play(base_url: str, model: str, redis_url: str, folder: str | None) -> Batch:
    async with client_of(base_url) as client:
        # As under `config:` in verl's YAML; every key is in docs/reference/verl.md.
        config = {"redis_url": redis_url, "rate_limit": PERMITS, "max_wait": 120}
        tools: list[Any] = [SandboxFusionTool(config), Gsm8kTool()]
        rollout = Rollout(client, model, tools, call_style="hermes", score=grade)
        return await run_batch(rollout, requests(rollout), rollout_data_dir=folder)


@contextlib.contextmanager
def penstock(*arguments: str, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """A subcommand, for as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def workshop() -> Iterator[str]:
    """Redis, sandbox and a worker under its gate; the Redis URL."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(folder) as redis,
        penstock("sandbox", "serve", "--port", "0") as sandbox,
    ):
        assert sandbox.stdout is not None
        url = sandbox.stdout.readline().strip()
        if not url:
            sys.exit("the sandbox does not start; `penstock sandbox selftest` says why")
        given = {"PENSTOCK_REDIS_URL": redis.url, "PENSTOCK_SANDBOX_FUSION_URL": url}
        with penstock("worker", "--gate", "code", "--gate-limit", str(PERMITS), **given):
            yield redis.url


def tell(batch: Batch) -> None:
    for trajectory in batch.trajectories:
        word = next(w for w in scripted_model.SCRIPTS if w in trajectory.request.data["question"])
        ran = len(trajectory.reward_scores.get("code_interpreter", []))
        end = trajectory.exit_reason or trajectory.stop_reason.value
        score = "-  " if trajectory.score is None else f"{trajectory.score:.1f}"
        print(f"{word:7} {score}  {end:6} {ran} program{'' if ran == 1 else 's'}")
    mean = "unknown" if batch.mean_score is None else f"{batch.mean_score:.2f}"
    resumed = f", {batch.resumed} from before" if batch.resumed else ""
    played, masked = len(batch.trajectories), len(batch.masked)
    print(f"{played} rollouts, {masked} masked, mean score {mean}{resumed}")


def main() -> None:
    parser = argparse.ArgumentParser(description="GSM8K with tools, end to end")
    parser.add_argument("--base-url", help="an OpenAI-compatible server; default: a scripted one")
    parser.add_argument("--rollout-data-dir", help="keep the trajectories there")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        base_url = options.base_url or stack.enter_context(scripted_model.serving())
        model = asyncio.run(first_model(base_url))
        redis_url = stack.enter_context(workshop())
        tell(asyncio.run(play(base_url, model, redis_url, options.rollout_data_dir)))


if __name__ == "__main__":
    main()
