"""What a run says of its case, as far as its output was kept."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from worker.models import MAX_STDIN, OUTPUT_LIMIT, CodeRequest, CodeResult

CUT = "output_cut"
_MARKER = "\n[truncated: "  # of `worker.models.truncate`
_WHY = (
    "the output was cut where it may still be right: the sandbox keeps less than is expected "
    "(the embedded one PENSTOCK_SANDBOX_OUTPUT_MB)"
)


class Compared(CodeRequest):
    """A request whose output is compared in this process: as much is kept as may be expected."""

    KEEPS: ClassVar[int] = MAX_STDIN


def as_known(
    result: CodeResult, expected: Sequence[bytes], may_be: Callable[[str], bool]
) -> CodeResult:
    """The same; masked where the output was cut, and what was kept of it does not decide.

    `may_be` says whether an output that begins so can still be right.
    """
    ran, longest = result.run_result, max(map(len, expected), default=0)
    if result.error_kind != "none":
        limit = result.error_reason == "output_limit" or getattr(ran, "limit", None) == "output"
        return _masked(result) if limit and longest > OUTPUT_LIMIT else result
    if not expected or ran is None or not ran.stdout_truncated:
        return result
    begun, marked, _ = result.stdout.rpartition(_MARKER)
    return _masked(result) if may_be(begun if marked else result.stdout) else result


def _masked(result: CodeResult) -> CodeResult:
    told = {"error_kind": "infrastructure", "error_reason": CUT, "message": _WHY}
    return result.model_copy(update=told)
