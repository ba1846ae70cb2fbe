"""One run of verl's prime_code: `python FILE FOLDER < {"code", "inputs", "outputs"}`.

FOLDER is verl's `utils/reward_score`; its files are loaded alone. Prints {"seconds", "score"}.
"""

import contextlib
import io
import json
import sys
import time


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from prime_code import compute_score  # type: ignore[import-not-found]

    given = json.load(sys.stdin)
    cases = {"inputs": given["inputs"], "outputs": given["outputs"]}
    completion = f"```python\n{given['code']}\n```"
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        score, _ = compute_score(completion, cases, continuous=True)
    print(json.dumps({"seconds": time.perf_counter() - began, "score": float(score)}))


if __name__ == "__main__":
    main()
