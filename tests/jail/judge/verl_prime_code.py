"""verl's prime_code on samples, in a process of its own: `python FILE FOLDER < samples`.

Without `continuous` version 0.9.1 raises where a case fails; verl itself always sets it.

FOLDER is verl's `utils/reward_score`. Its files are loaded alone; verl needs not be importable.
"""

import contextlib
import io
import json
import sys


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from prime_code import compute_score  # type: ignore[import-not-found]

    samples = json.load(sys.stdin)
    verdicts = []
    for sample in samples:
        cases = {"inputs": sample["inputs"], "outputs": sample["outputs"]}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            score, _ = compute_score(f"```python\n{sample['code']}\n```", cases, continuous=True)
        verdicts.append(float(score))
    print(json.dumps(verdicts))


if __name__ == "__main__":
    main()
