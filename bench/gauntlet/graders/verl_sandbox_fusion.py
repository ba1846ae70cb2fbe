"""verl's `sandbox_fusion` reward, by a server of that contract at SANDBOX_FUSION_URL.

It needs `pip install verl`.
"""

import os
from typing import Any

from verl.utils.reward_score.sandbox_fusion.utils import check_correctness

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    url = os.environ["SANDBOX_FUSION_URL"]
    results, _ = check_correctness(url, problem["row"], code, timeout=5)
    if any(one == -1 for one in results):
        return None
    return float(all(one is True for one in results))
