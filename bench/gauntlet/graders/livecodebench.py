"""LiveCodeBench's own runner, from a clone of it on PYTHONPATH. It isolates nothing."""

import json
from typing import Any

from lcb_runner.evaluation.testing_util import run_test

LANGUAGES, MODES = {"python"}, {"function", "stdin"}


def grade(problem: dict[str, Any], language: str, code: str) -> float:
    if problem["mode"] == "function":
        inputs = ["\n".join(json.dumps(one) for one in given) for given in problem["inputs"]]
        outputs = [json.dumps(one) for one in problem["outputs"]]
    else:
        inputs, outputs = problem["inputs"], problem["outputs"]
    row = {"inputs": inputs, "outputs": outputs, "fn_name": problem.get("fn_name")}
    results, _ = run_test({"input_output": json.dumps(row)}, test=code, timeout=6)
    return float(all(one is True for one in results))
