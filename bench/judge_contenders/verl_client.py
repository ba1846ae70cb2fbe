"""verl's reward that asks a sandbox for each case: `python FILE FOLDER < {"code", "url", …}`.

FOLDER is verl's `utils/reward_score`; the one file is loaded alone. Prints {"seconds", "score"}.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path


def main() -> None:
    path = Path(sys.argv[1], "sandbox_fusion", "utils.py")
    spec = importlib.util.spec_from_file_location("reward", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    reward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reward)
    given = json.load(sys.stdin)
    cases = {"inputs": given["inputs"], "outputs": given["outputs"]}
    began = time.perf_counter()
    results, _ = reward.check_correctness(
        f"{given['url']}/run_code", cases, given["code"], 30, 1024, given["language"]
    )
    seconds = time.perf_counter() - began
    right = sum(result is True for result in results)
    print(json.dumps({"seconds": seconds, "score": right / len(given["inputs"])}))


if __name__ == "__main__":
    main()
