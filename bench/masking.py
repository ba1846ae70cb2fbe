"""What happens to rewards while a sandbox fails for every tenth program, of each kind.

Half of the programs are right, a quarter passes one case of two, a quarter none. Rewards are asked
for in batches of 64, of one sandbox over HTTP, which fails in four ways: 503, 500, 504 and
`SandboxError`. A reward is false if it is a number and the sandbox failed; the error of the mean is
that of all rewards that are trained on, against the mean of what the programs deserve.

    penstock         `CodeReward`, as TRL calls it
    verl             `check_correctness`, and `compute_score`'s share of it
    plain function   a reward function for TRL that catches errors and returns 0.0

verl needs `--peer verl=FOLDER`, its `utils/reward_score`.
"""

import asyncio
import json
import logging
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench._masking_sandbox import MARK, OUTAGES
from bench.peers import FOLDERS, ROOT, environment
from bench.suite import Suite, Target
from worker.hosts.trl import CodeReward
from worker.settings import worker_settings

_CONTENDER = Path(__file__).parent / "masking_contenders" / "verl_rewards.py"
_CASES = {"inputs": ["3", "4"], "outputs": ["9", "16"]}
_KINDS = (
    ("print(int(input()) ** 2)", 1.0),
    ("n = int(input()); print(9)", 0.5),
    ("print(int(input()) ** 2)  # twice as many as the others", 1.0),
    ("print(0)", 0.0),
)
_EVERY = 10
_BATCH = 64
_TIMEOUT = 10
_ATTEMPTS = "2"  # of ours; verl makes three after a 504, and one after all else

Rewards = Sequence[float | None]


def measure(quick: bool) -> Suite:
    """All contenders on the same programs."""
    count = 200 if quick else 2000
    programs, deserved = _programs(count)
    sandbox = subprocess.Popen(
        [sys.executable, "-m", "bench._masking_sandbox"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert sandbox.stdout is not None
    url = sandbox.stdout.readline().strip()

    def over(rewards_of: Callable[[str, Sequence[str]], Rewards]) -> Callable[[], Any]:
        def run() -> dict[str, float]:
            return _judged(programs, deserved, rewards_of(url, programs))

        return run

    contenders = {"penstock": over(_ours), "plain function": over(_plain)}
    if "verl" in FOLDERS:
        contenders["verl"] = over(_verls)
    return Suite(
        contenders=contenders,
        rounds=1,
        conditions={"programs": count, "of which the sandbox fails for": count // _EVERY},
        targets=[
            Target("penstock false zeros", at_most=0),
            Target("penstock error of the mean %", at_most=0.1),
        ],
        clean_up=sandbox.kill,
    )


def _programs(count: int) -> tuple[list[str], list[float]]:
    """Each one's text, of which no two are equal, and what it deserves."""
    programs, deserved = [], []
    for number in range(count):
        code, value = _KINDS[number % len(_KINDS)]
        round_, of_kind = divmod(number // len(_KINDS), _EVERY)
        outage = OUTAGES[(round_ + number) % len(OUTAGES)] if of_kind == 0 else ""
        mark = f"\n{MARK.decode()}{outage}." if outage else ""
        programs.append(f"{code}\n# {number}{mark}")
        deserved.append(value)
    return programs, deserved


def _judged(
    programs: Sequence[str], deserved: Sequence[float], rewards: Rewards
) -> dict[str, float]:
    failed = [MARK.decode() in program for program in programs]
    known = [reward for reward in rewards if reward is not None]
    true, mean = sum(deserved) / len(deserved), sum(known) / max(len(known), 1)
    wrong = [
        reward != value
        for reward, value, outage in zip(rewards, deserved, failed, strict=True)
        if not outage
    ]
    assert not any(wrong), f"{sum(wrong)} rewards are wrong though the sandbox was well"
    zeros = [reward == 0 for reward, outage in zip(rewards, failed, strict=True) if outage]
    return {
        "false zeros": float(sum(zeros)),
        "masked": float(sum(reward is None for reward in rewards)),
        "error of the mean %": abs(mean - true) / true * 100,
    }


def _ours(url: str, programs: Sequence[str]) -> Rewards:
    logging.getLogger("penstock").setLevel(logging.ERROR)
    os.environ["PENSTOCK_SANDBOX_ATTEMPTS"] = _ATTEMPTS
    worker_settings.cache_clear()
    reward = CodeReward("cases", on=url, case_timeout=_TIMEOUT)

    async def asked() -> list[float | None]:
        found: list[float | None] = []
        for some in _batches(programs):
            found += await reward([], some, cases=[_CASES] * len(some))
        return found

    return asyncio.run(asked())


def _plain(url: str, programs: Sequence[str]) -> Rewards:
    def passes(code: str, stdin: str, expected: str) -> bool:
        asked = {"code": code, "language": "python", "stdin": stdin, "run_timeout": _TIMEOUT}
        request = urllib.request.Request(
            f"{url}/run_code", json.dumps(asked).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=2 * _TIMEOUT) as answer:
            ran = json.load(answer)
        return bool(ran["run_result"]["stdout"].strip() == expected)

    def rewarded(completion: str) -> float:
        code = completion.partition("```python\n")[2].rpartition("\n```")[0]
        pairs = zip(_CASES["inputs"], _CASES["outputs"], strict=True)
        try:
            return sum(passes(code, *pair) for pair in pairs) / len(_CASES["inputs"])
        except Exception:  # noqa: BLE001 - so that training continues: what is measured here
            return 0.0

    with ThreadPoolExecutor(_BATCH) as threads:
        return [one for some in _batches(programs) for one in threads.map(rewarded, some)]


def _verls(url: str, programs: Sequence[str]) -> Rewards:
    given: Mapping[str, Any] = {
        "url": url, "programs": programs, "cases": _CASES, "timeout": _TIMEOUT, "at_once": _BATCH,
    }  # fmt: skip
    python = environment("masking", ["requests==2.34.2"])
    said = subprocess.run(
        [str(python), str(_CONTENDER), str(FOLDERS["verl"])],
        input=json.dumps(given), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        timeout=1200, check=True,
    ).stdout  # fmt: skip
    rewards: list[float] = json.loads(said.strip().splitlines()[-1])["rewards"]
    return rewards


def _batches(programs: Sequence[str]) -> list[list[str]]:
    fenced = [f"```python\n{program}\n```" for program in programs]
    return [fenced[start : start + _BATCH] for start in range(0, len(fenced), _BATCH)]
