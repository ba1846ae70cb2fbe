"""Penstock's `Grader`, by the door that a row's own shape opens; in the embedded sandbox, or on a
queue if PENSTOCK_REDIS_URL is set."""

from typing import Any

from worker.hosts.grading import Grader

LANGUAGES = {"python", "cpp", "nodejs", "bash"}


async def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    grader = Grader(
        language=language, fenced=False, all_or_nothing=True, case_timeout=2.0,
        compare="floats" if "tolerance" in problem else None,
    )  # fmt: skip
    found = await grader.grade_code(code, _row(problem))
    return found.value


def _row(problem: dict[str, Any]) -> Any:
    match problem["mode"]:
        case "function":
            return {name: problem[name] for name in ("fn_name", "inputs", "outputs")}
        case "stdin":
            return {name: problem[name] for name in ("inputs", "outputs")}
        case _:
            return [{"input": "", "check": check} for check in problem["checks"]]
