"""A case's printed end says how its run went, as far as its output was kept."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from jail.models import MAX_STDIN, OUTPUT_LIMIT, CodeRequest, CodeResult

CUT = "output_cut"
_MARKER = "\n[truncated: "  # of `jail.models.truncate`
_WHY = (
    "the output was cut where it may still be right: the sandbox keeps less than is expected "
    "(the embedded one PENSTOCK_SANDBOX_OUTPUT_MB)"
)
_ENDED_EARLY = {"status": "Failed", "error_kind": "user", "error_reason": "ended_early"}
_FLOOD = {"status": "Failed", "error_kind": "limit", "error_reason": "output_limit"}


class Compared(CodeRequest):
    """A request whose output is compared in this process: as much is kept as may be expected."""

    KEEPS: ClassVar[int] = MAX_STDIN


def as_known(
    result: CodeResult, mark: str, expected: Sequence[bytes], may_be: Callable[[str], bool]
) -> CodeResult:
    """The output, without its script's mark; an error if it ended before the mark.

    Masked where the output was cut, and what was kept of it does not decide. If that is far more
    than is expected, its program has passed a limit. `may_be` says whether an output that begins
    so can still be right.
    """
    ran, longest = result.run_result, max(map(len, expected), default=0)
    if mark and ran is not None and mark in (ran.stdout or ""):
        ran = ran.model_copy(update={"stdout": (ran.stdout or "").replace(mark, "")})
        result, mark = result.model_copy(update={"run_result": ran}), ""
    if result.error_kind != "none":
        limit = result.error_reason == "output_limit" or getattr(ran, "limit", None) == "output"
        return _masked(result) if limit and longest > OUTPUT_LIMIT else result
    if ran is None or not ran.stdout_truncated:
        return result.model_copy(update=_ENDED_EARLY) if mark else result
    begun, cut, _ = result.stdout.rpartition(_MARKER)
    begun = begun if cut else result.stdout
    if not (may_be(begun) if expected else mark):
        return result
    # No right program prints so much: blanks, or the notes of a check, would buy a mask.
    much = len(begun.encode()) > max(2 * longest, OUTPUT_LIMIT // 2)
    return result.model_copy(update=_FLOOD) if much else _masked(result)


def _masked(result: CodeResult) -> CodeResult:
    told = {"error_kind": "infrastructure", "error_reason": CUT, "message": _WHY}
    return result.model_copy(update=told)
