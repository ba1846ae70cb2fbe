"""verl's `prime_code`, which its trainers use for such rows; it isolates nothing.

It needs `pip install verl`.
"""

import json
from typing import Any

from verl.utils.reward_score import prime_code

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float:
    row = {name: problem[name] for name in ("inputs", "outputs", "fn_name") if name in problem}
    if "fn_name" in row:
        row["inputs"] = ["\n".join(json.dumps(one) for one in given) for given in row["inputs"]]
        row["outputs"] = [json.dumps(one) for one in row["outputs"]]
    success, _ = prime_code.compute_score(
        f"```python\n{code}```", json.dumps(row), continuous=False
    )
    return float(success)
