"""verl's `sandbox_fusion` reward, by a server of that contract at SANDBOX_FUSION_URL.

It needs `pip install verl`.
"""

import json
import os
from typing import Any

from verl.utils.reward_score.sandbox_fusion.utils import check_correctness

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    row = {name: problem[name] for name in ("inputs", "outputs", "fn_name") if name in problem}
    if "fn_name" in row:
        row["inputs"] = ["\n".join(json.dumps(one) for one in given) for given in row["inputs"]]
        row["outputs"] = [json.dumps(one) for one in row["outputs"]]
    url = os.environ["SANDBOX_FUSION_URL"]
    results, _ = check_correctness(url, row, code, timeout=5)
    if any(one == -1 for one in results):
        return None
    return float(all(one is True for one in results))
