"""verl's reward over a sandbox that fails at times: `python FILE FOLDER < {"url", "programs", …}`.

FOLDER is verl's `utils/reward_score`; the one file is loaded alone. Prints {"rewards": [...]}, as
`compute_score` makes them of `check_correctness`: the share of the cases that are True.
"""

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def main() -> None:
    path = Path(sys.argv[1], "sandbox_fusion", "utils.py")
    spec = importlib.util.spec_from_file_location("reward", path)
    assert spec is not None and spec.loader is not None  # noqa: PT018
    reward = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reward)
    given = json.load(sys.stdin)

    def rewarded(code: str) -> float:
        results, _ = reward.check_correctness(
            f"{given['url']}/run_code", given["cases"], code, given["timeout"]
        )
        return sum(result is True for result in results) / len(results)

    with ThreadPoolExecutor(given["at_once"]) as threads:
        print(json.dumps({"rewards": list(threads.map(rewarded, given["programs"]))}))


if __name__ == "__main__":
    main()
