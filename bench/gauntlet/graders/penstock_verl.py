"""Penstock's `compute_score`: verl's function with verl's rules, in the embedded sandbox."""

from typing import Any

from worker.reward import compute_score

LANGUAGES = {"python", "cpp", "nodejs", "bash"}


def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    cases = problem["row"] if "row" in problem else {"assert_case": problem["checks"]}
    found, _ = compute_score("local", None, 1024, f"```{language}\n{code}\n```", cases, timeout=5)
    return found
