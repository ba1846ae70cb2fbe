"""verl's `prime_code`, which its trainers use for such rows; it isolates nothing.

It needs `pip install verl`. `continuous` is how verl calls it: the first ten cases count. Without,
release 0.9.1 raises an error for each program that fails.
"""

import json
from typing import Any

from verl.utils.reward_score import prime_code

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float:
    success, _ = prime_code.compute_score(
        f"```python\n{code}```", json.dumps(problem["row"]), continuous=True
    )
    return float(success)
