"""LiveCodeBench's own runner, from a clone of it on PYTHONPATH. It isolates nothing."""

import json
from typing import Any

from lcb_runner.evaluation.testing_util import run_test

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float:
    row = {"fn_name": None, **problem["row"]}
    results, _ = run_test({"input_output": json.dumps(row)}, test=code, timeout=6)
    return float(all(one is True for one in results))
