"""What a first reward function does: exec in this process, and == on what comes back."""

import contextlib
import io
import sys
from typing import Any

LANGUAGES = {"python"}


def grade(problem: dict[str, Any], language: str, code: str) -> float:
    if problem["mode"] in ("check", "shared"):
        return float(all(_passes(code, check) for check in problem["checks"]))
    pairs = zip(problem["inputs"], problem["outputs"], strict=True)
    return float(all(_is_right(problem, code, *pair) for pair in pairs))


def _passes(code: str, check: str) -> bool:
    try:
        exec(f"{code}\n{check}\n", {"__name__": "__main__"})
    except SystemExit as ended:
        return not ended.code
    except Exception:  # noqa: BLE001 - the program's own
        return False
    return True


def _is_right(problem: dict[str, Any], code: str, given: Any, expected: Any) -> bool:
    said = io.StringIO()
    names: dict[str, Any] = {"__name__": "program"}
    sys.stdin = io.StringIO(given if isinstance(given, str) else "")
    try:
        with contextlib.redirect_stdout(said):
            if problem["mode"] == "function":
                exec(code, names)
                return bool(names[problem["fn_name"]](*given) == expected)
            exec(code, {"__name__": "__main__"})
    except SystemExit:
        pass
    except Exception:  # noqa: BLE001 - the program's own
        return False
    return problem["mode"] == "stdin" and bool(said.getvalue().split() == expected.split())
