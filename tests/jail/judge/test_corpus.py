"""The embedded judge on a corpus of programs, beside what verl's rewards say of them."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from jail import LocalSandbox
from jail.judge.asking import request_here
from jail.judge.formats import read_cases
from tests.harness.upstream import module_at
from tests.jail.judge.corpus import FUSION_REWARD, PRIME_CODE, VARIANTS, Sample, corpus
from tests.jail.serving import served

VERL = os.environ.get("VERL_REWARD_SCORE", "")  # verl's utils/reward_score, and numpy beside it


def judged(samples: Sequence[Sample]) -> list[str]:
    async def all_of_them() -> list[str]:
        sandbox, room = LocalSandbox(), asyncio.Semaphore(4)

        async def one(sample: Sample) -> str:
            cases = read_cases({"inputs": sample.inputs, "outputs": sample.outputs})
            request, suite = request_here(sample.code, cases, {"run_timeout": 2.0})
            async with room:
                return (await sandbox.judge(request, suite)).verdicts

        try:
            return await asyncio.gather(*map(one, samples))
        finally:
            await sandbox.close()

    return asyncio.run(all_of_them())


def differing(samples: Sequence[Sample]) -> list[tuple[str, str, str, str]]:
    return [
        (sample.problem, sample.variant, sample.expected, verdicts)
        for sample, verdicts in zip(samples, judged(samples), strict=True)
        if verdicts != sample.expected
    ]


def test_every_variant_of_a_program_has_its_verdicts() -> None:
    """One problem of each variant; all of them below."""
    everything = corpus()
    assert len(everything) >= 300
    sample = [everything[at * len(VARIANTS) + at % 18] for at in range(18)]
    assert differing([*sample, *everything[: len(VARIANTS)]]) == []


@pytest.mark.soak
def test_all_programs_have_their_verdicts() -> None:
    assert differing(corpus(slow=True)) == []


@pytest.mark.soak
@pytest.mark.skipif(
    not VERL or importlib.util.find_spec("numpy") is None,
    reason="VERL_REWARD_SCORE names no folder, or numpy is not here",
)
def test_verls_prime_code_says_the_same_but_for_what_is_listed() -> None:
    samples = list(_one_of_each())
    said = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("verl_prime_code.py")), VERL],
        input=json.dumps([vars(sample) for sample in samples]), capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    theirs = [score == 1.0 for score in json.loads(said.splitlines()[-1])]

    found = {
        sample.variant
        for sample, right in zip(samples, theirs, strict=True)
        if right != (set(sample.expected) == {"P"})
    }
    assert found == set(PRIME_CODE)


_CODES = {True: "P", False: "W", -1: "M", -2: "E", -3: "T", -4: "C"}


@pytest.mark.soak
@pytest.mark.skipif(
    not VERL or importlib.util.find_spec("requests") is None,
    reason="VERL_REWARD_SCORE names no folder, or requests is not here",
)
def test_verls_sandbox_fusion_reward_says_the_same_but_for_what_is_listed() -> None:
    reward = module_at(Path(VERL, "sandbox_fusion", "utils.py"))

    def said(url: str, sample: Sample) -> str:
        cases = {"inputs": sample.inputs, "outputs": sample.outputs}
        results, _ = reward.check_correctness(f"{url}/run_code", cases, sample.code, 10, 512)
        return "".join(_CODES[result] for result in results)

    for url in served():
        found = {
            sample.variant: words
            for sample in corpus()
            if (words := said(url, sample)) != sample.expected
        }
    assert found == FUSION_REWARD


def _one_of_each() -> Iterator[Sample]:
    seen = set()
    for sample in corpus():
        if sample.variant not in seen:
            seen.add(sample.variant)
            yield sample
