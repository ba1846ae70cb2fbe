"""An outcome becomes a result by one function; what `/run_code` answers is that result."""

from dataclasses import replace

import pytest

from jail.answer import body_of, result_of
from jail.outcome import Outcome, Step
from tests.architecture.source import modules, name_of

RAN = Step("finished", 0, b"\xff1", b"", 0.5, 0.25, 1 << 20, 2)


@pytest.mark.parametrize(
    ("step", "status", "command", "code", "limit", "kind", "reason"),
    [
        (RAN, "Success", "Finished", 0, None, "none", ""),
        (replace(RAN, return_code=3), "Failed", "Finished", 3, None, "user", "exit"),
        (replace(RAN, return_code=-11), "Failed", "Finished", -11, None, "user", "signal"),
        (replace(RAN, status="time_limit"), "Failed", "TimeLimitExceeded", None, "time",
         "limit", "run_timeout"),
        (replace(RAN, status="memory_limit", return_code=None), "Failed", "Finished", -9,
         "memory", "limit", "memory_limit"),
        (replace(RAN, status="output_limit", return_code=None), "Failed", "Finished", -9,
         "output", "limit", "output_limit"),
        (replace(RAN, status="process_limit"), "Failed", "Finished", -9,
         "processes", "limit", "process_limit"),
    ],
)  # fmt: skip
def test_a_result_and_the_servers_answer_say_the_same(
    step: Step, status: str, command: str, code: int | None, limit: str | None, kind: str,
    reason: str,
) -> None:  # fmt: skip
    outcome = Outcome(step.status, "ns", run=step, files={"a": b"x"}, refused_files={"b": "no"})
    result = result_of(outcome)
    assert (result.error_kind, result.error_reason) == (kind, reason)
    assert body_of(result) == {
        "status": status, "message": "", "compile_result": None, "executor_pod_name": None,
        "files": {"a": "eA=="}, "isolation": "ns", "refused_files": {"b": "no"},
        "run_result": {
            "status": command, "execution_time": 0.5, "return_code": code, "stdout": "\ufffd1",
            "stderr": "", "limit": limit, "cpu_time": 0.25, "memory_peak": 1 << 20,
            "processes_peak": 2,
        },
    }  # fmt: skip


def test_a_failure_of_ours_is_a_sandbox_error() -> None:
    result = result_of(Outcome("infrastructure", "ns", error="the jail is lost"))
    assert (result.status, result.error_kind) == ("SandboxError", "infrastructure")
    assert body_of(result)["message"] == "the jail is lost"


def test_no_other_file_makes_a_result_of_a_step() -> None:
    outside = [file for file in modules("jail") if "inside" not in file.parts]
    found = {name_of(file) for file in outside if "processes_peak" in file.read_text()}
    assert found == {"jail/answer.py", "jail/outcome.py"}
