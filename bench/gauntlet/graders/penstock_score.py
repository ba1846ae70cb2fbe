"""Penstock's `score`, in the embedded sandbox. A case's stdin has a function's arguments."""

from typing import Any

from worker.reward import Case, score

LANGUAGES = {"python", "cpp", "nodejs", "bash"}


async def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    if "checks" in problem:
        cases = [Case(check=check) for check in problem["checks"]]
    else:
        row = problem["row"]
        cases = [Case(*pair) for pair in zip(row["inputs"], row["outputs"], strict=True)]
    found = await score(
        code, cases, on="local", language=language, case_timeout=2.0, stop_early=True,
        function=problem.get("fn_name"), compare="floats" if "tolerance" in problem else "lines",
    )  # fmt: skip
    return found.value
