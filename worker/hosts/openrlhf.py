"""OpenRLHF's reward, in a file that it loads by its path:

    --reward.remote_url "$(python -m worker.hosts.openrlhf)" --algo.dynamic_filtering_enable

A completion that cannot be graded has the score NaN. With dynamic filtering OpenRLHF then drops its
group, and asks for another one. Without, it trains on the 0.0 beside it.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from ground.process import from_thread
from worker.hosts.grading import Grade, Grader


class CodeReward:
    """A `reward_func` of OpenRLHF, with the settings of `worker.hosts.Grader`. The labels have the
    cases, as JSON."""

    def __init__(self, grader: Grader | None = None, **settings: Any) -> None:
        self._grader = grader or Grader(**settings)

    def __call__(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        """OpenRLHF calls it in a thread, mostly with lists of one."""
        grades = from_thread(self._graded(queries, prompts, labels))
        rewards = [0.0 if grade.value is None else grade.value for grade in grades]
        scores = [math.nan if grade.value is None else grade.value for grade in grades]
        masked = sum(grade.masked for grade in grades)
        one = len(grades) == 1
        return {
            "rewards": rewards[0] if one else rewards,
            "scores": scores[0] if one else scores,
            "extra_logs": {"traj_masked": masked / max(len(grades), 1)},
        }

    async def _graded(
        self, queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> list[Grade]:
        rows = zip(queries, prompts, labels, strict=True)
        return await asyncio.gather(
            *(self._grader.grade(_answer(query, prompt), label) for query, prompt, label in rows)
        )


def _answer(query: str, prompt: str) -> str:
    """A query is the prompt, perhaps cut at its beginning or with other spaces, and the answer."""
    if query.startswith(prompt):
        return query[len(prompt) :]
    end = "".join(prompt.split())[-200:]
    places = [place for place, letter in enumerate(query) if not letter.isspace()]
    found = "".join(query[place] for place in places).find(end) if end else -1
    return query if found < 0 else query[places[found + len(end) - 1] + 1 :]


reward_func = CodeReward()

if __name__ == "__main__":
    print(__file__)
