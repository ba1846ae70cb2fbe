"""Requests and results: what is taken, what is refused, and whose doing an end was."""

import base64
import json
import subprocess
import sys
from typing import ClassVar

import pytest

from ground.errors import VersionError
from jail.errors import RequestRefused, SandboxBroken, SandboxBusy
from jail.models import (
    LANGUAGES,
    MAX_CODE,
    OUTPUT_LIMIT,
    CodeRequest,
    CodeResult,
    CommandResult,
    kind_of_end,
    truncate,
)
from worker.settings import WorkerSettings

HELLO = base64.b64encode(b"hello").decode()
FINE = CommandResult(status="Finished", return_code=0)
EXIT_1 = CommandResult(status="Finished", return_code=1)
KILLED = CommandResult(status="Finished", return_code=-9)
LATE = CommandResult(status="TimeLimitExceeded")
ODD = CommandResult(status="Error", stderr="no such file")
UNSAID = CommandResult(status="Finished")


def test_a_request_survives_json():
    request = CodeRequest(
        code="print('ü')", stdin="1\n", files={"a/b.txt": HELLO}, labels={"step": "7"}
    )
    assert CodeRequest.read(json.loads(json.dumps(request.dump()))) == request


def test_a_result_survives_json_and_keeps_its_verdict():
    result = CodeResult(status="Failed", run_result=LATE, attempts=2, queued_seconds=0.5)
    again = CodeResult.read(json.loads(json.dumps(result.dump())))
    assert again == result
    assert (again.error_kind, again.error_reason) == ("limit", "run_timeout")


def test_the_defaults_are_sandbox_fusions():
    request = CodeRequest(code="1")
    assert (request.language, request.compile_timeout, request.run_timeout) == ("python", 10, 10)
    assert (request.stdin, request.memory_limit_mb, request.files) == (None, None, {})


def test_sandbox_fusions_own_body_is_a_request():
    body = {
        "code": "print(1)", "language": "cpp", "compile_timeout": 30, "run_timeout": 5,
        "memory_limit_MB": 1024, "stdin": "", "files": {}, "fetch_files": ["/mnt/b"],
    }  # fmt: skip
    request = CodeRequest.read(body)
    assert (request.memory_limit_mb, request.stdin) == (1024, "")
    assert CodeRequest.read(body | {"memory_limit_MB": -1}).memory_limit_mb is None


def test_keys_of_a_newer_release_are_kept():
    assert CodeRequest.read({"code": "1", "gpu": {"kind": "t4"}}).dump()["gpu"] == {"kind": "t4"}
    newer = {"status": "Success", "run_result": {"status": "Finished", "cpu_time": 0.1}, "peak": 3}
    dumped = CodeResult.read(newer).dump()
    assert (dumped["peak"], dumped["run_result"]["cpu_time"]) == (3, 0.1)


class NextRequest(CodeRequest):
    VERSION: ClassVar[int] = 2
    v: int = 2


@pytest.mark.parametrize("version", [1, 2])
def test_the_current_and_the_previous_version_are_read(version):
    assert NextRequest.read({"v": version, "code": "1"}).v == version


@pytest.mark.parametrize("version", [0, 3, "1", None])
def test_another_version_is_refused(version):
    with pytest.raises(VersionError, match="upgrade the older side"):
        NextRequest.read({"v": version, "code": "1"})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, r"code: Field required"),
        ({"code": None}, r"code: Input should be a valid string"),
        ({"code": "x" * (MAX_CODE + 1)}, r"code is 1,048,577 bytes, and at most 1,048,576"),
        ({"code": "ü" * (MAX_CODE // 2) + "."}, r"code is 1,048,577 bytes"),
        ({"code": "a\ud800"}, r"code has a lone surrogate at 1, which UTF-8 cannot carry"),
        ({"stdin": "\udfff"}, r"stdin has a lone surrogate"),
        ({"labels": {"a": "\ud800"}}, r"labels has a lone surrogate"),
        ({"language": "cobol"}, r"language 'cobol' is unknown; known are bash, c, cpp"),
        ({"language": "Python"}, r"language 'Python' is unknown"),
        ({"run_timeout": 0}, r"run_timeout: Input should be greater than 0 \(got 0\)"),
        ({"run_timeout": -1.5}, r"run_timeout: .* \(got -1.5\)"),
        ({"compile_timeout": 3601}, r"compile_timeout: .* less than or equal to 3600"),
        ({"run_timeout": float("nan")}, r"run_timeout: .*finite"),
        ({"run_timeout": float("inf")}, r"run_timeout: .*finite"),
        ({"run_timeout": "soon"}, r"run_timeout: .*valid number"),
        ({"memory_limit_mb": 0}, r"memory_limit_mb: .* \(got 0\)"),
        ({"memory_limit_mb": -2}, r"memory_limit_mb: .* \(got -2\)"),
        ({"files": {"../a": HELLO}}, r"files has '../a', which leads out .* by '..'"),
        ({"files": {"a/../../b": HELLO}}, r"files has 'a/../../b', which leads out"),
        ({"files": {"/etc/passwd": HELLO}}, r"files has '/etc/passwd'; names must be relative"),
        ({"files": {"": HELLO}}, r"files has '', which names no file"),
        ({"files": {"a/": HELLO}}, r"files has 'a/', which names no file"),
        ({"files": {".": HELLO}}, r"files has '.', which names no file"),
        ({"files": {"a\0b": HELLO}}, r"files has 'a\\x00b', which names no file"),
        ({"files": {"a": "aGk"}}, r"files has 'a', whose content is not base64"),
        ({"files": {"a": "é"}}, r"files has 'a', whose content is not base64"),
        ({"files": {"a": "A" * (17 << 20)}}, r"files are 17,825,792 bytes of base64"),
        ({"files": {str(i): "" for i in range(257)}}, r"files: .* at most 256"),
        ({"fetch_files": ["../a"]}, r"fetch_files has '../a', which leads out"),
        ({"correlation_id": "a\r\nX-Key: 1"}, r"correlation_id: .*pattern"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_sentence(given, sentence):
    with pytest.raises(RequestRefused, match=f"^CodeRequest: {sentence}") as refusal:
        CodeRequest.read({"code": "1"} | given if given else {})
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600


def test_base64_may_be_in_lines():
    content = bytes(range(256))
    request = CodeRequest(code="1", files={"a": base64.encodebytes(content).decode()})
    assert request.files == {"a": base64.b64encode(content).decode()}


@pytest.mark.parametrize("message", [None, [], "print(1)", 5])
def test_what_is_no_object_is_refused(message):
    with pytest.raises(RequestRefused, match="CodeRequest is a JSON object, not"):
        CodeRequest.read(message)
    with pytest.raises(SandboxBroken, match="CodeResult is a JSON object, not"):
        CodeResult.read(message)


def test_the_constructor_refuses_as_reading_does():
    with pytest.raises(RequestRefused, match="run_timeout"):
        CodeRequest(code="1", run_timeout=0)


def test_a_result_that_makes_no_sense_is_unreadable():
    with pytest.raises(SandboxBroken, match="status: Input should be 'Success'"):
        CodeResult.read({"status": "Excellent"})


def test_null_in_an_answer_means_nothing():
    result = CodeResult.read({"status": "Success", "message": None, "files": None})
    assert (result.message, result.files) == ("", {})


def test_all_of_sandbox_fusions_languages_are_known():
    assert len(LANGUAGES - {"c"}) == 32
    assert all(CodeRequest(code="1", language=language) for language in LANGUAGES)


# Upstream's status, compile result, run result -> error kind and reason.
VERDICTS = [
    ("Success", None, FINE, "none", ""),
    ("Success", FINE, FINE, "none", ""),
    ("Success", FINE, None, "none", ""),
    ("Success", None, UNSAID, "none", ""),
    ("Failed", None, EXIT_1, "user", "exit"),
    ("Failed", FINE, EXIT_1, "user", "exit"),
    ("Failed", None, KILLED, "user", "signal"),
    ("Failed", EXIT_1, None, "user", "compile_error"),
    ("Failed", KILLED, None, "user", "compile_error"),
    ("Failed", None, LATE, "limit", "run_timeout"),
    ("Failed", FINE, LATE, "limit", "run_timeout"),
    ("Failed", LATE, None, "limit", "compile_timeout"),
    ("SandboxError", None, None, "infrastructure", "sandbox_error"),
    ("SandboxError", None, ODD, "infrastructure", "sandbox_error"),
    ("SandboxError", ODD, None, "infrastructure", "sandbox_error"),
    ("SandboxError", FINE, ODD, "infrastructure", "sandbox_error"),
    ("SandboxError", None, FINE, "infrastructure", "sandbox_error"),
    ("SandboxError", None, EXIT_1, "infrastructure", "sandbox_error"),
    ("SandboxError", None, LATE, "infrastructure", "sandbox_error"),
    # What upstream's rules exclude is nobody's program: never a reward of 0.
    ("Failed", None, ODD, "infrastructure", "sandbox_error"),
    ("Success", None, ODD, "infrastructure", "sandbox_error"),
    ("Success", None, EXIT_1, "infrastructure", "contradiction"),
    ("Success", None, LATE, "infrastructure", "contradiction"),
    ("Success", LATE, None, "infrastructure", "contradiction"),
    ("Success", None, None, "infrastructure", "contradiction"),
    ("Failed", None, FINE, "infrastructure", "contradiction"),
    ("Failed", None, UNSAID, "infrastructure", "contradiction"),
    ("Failed", FINE, FINE, "infrastructure", "contradiction"),
    ("Failed", None, None, "infrastructure", "contradiction"),
]


@pytest.mark.parametrize(("status", "compiled", "ran", "kind", "reason"), VERDICTS)
def test_whose_doing_an_end_was(status, compiled, ran, kind, reason):
    assert kind_of_end(status, compiled, ran) == (kind, reason)
    result = CodeResult(status=status, compile_result=compiled, run_result=ran)
    assert (result.error_kind, result.error_reason, result.ok) == (kind, reason, kind == "none")


def test_a_sandbox_that_knows_better_may_say_so():
    out_of_memory = CodeResult(
        status="Failed", run_result=KILLED, error_kind="limit", error_reason="memory"
    )
    assert CodeResult.read(out_of_memory.dump()).error_reason == "memory"


def test_a_failure_becomes_a_masked_result():
    busy = SandboxBusy("the sandbox is full", reason="busy", retry_after=2)
    result = CodeResult.of_failure(busy)
    assert (result.status, result.error_kind) == ("SandboxError", "infrastructure")
    assert (result.error_reason, result.message) == ("busy", "the sandbox is full")


def test_a_failure_keeps_what_the_sandbox_reported():
    reported = CodeResult(
        status="SandboxError", message="no fork", run_result=ODD, executor_pod_name="pod-7"
    )
    failure = SandboxBroken("could not run it", reason="sandbox_error", result=reported)
    result = CodeResult.of_failure(failure)
    assert (result.executor_pod_name, result.stderr) == ("pod-7", "no such file")
    assert (result.message, result.error_reason) == ("no fork", "sandbox_error")
    assert result.error_kind == "infrastructure"


def test_a_compile_error_shows_what_the_compiler_said():
    failed = CommandResult(status="Finished", return_code=1, stderr="expected ';'")
    assert CodeResult(status="Failed", compile_result=failed).stderr == "expected ';'"


def test_output_at_the_limit_is_left_alone():
    assert truncate("x" * 10, 10) == ("x" * 10, False)
    assert truncate("", 10) == ("", False)


def test_output_over_the_limit_is_cut_and_marked():
    text, cut = truncate("x" * 11, 10)
    assert cut
    assert text == "x" * 10 + "\n[truncated: 11 bytes, the first 10 kept]"


@pytest.mark.parametrize("limit", range(3, 8))
def test_a_character_is_never_cut_in_two(limit):
    text, cut = truncate("€😀", limit)  # 3 and 4 bytes
    assert cut == (limit < 7)
    assert text.startswith("€\n" if cut else "€😀")


def test_a_lone_surrogate_in_output_is_replaced():
    assert truncate("a\ud800b") == ("a?b", False)


def test_a_flood_is_bounded_on_the_workers_side():
    flood = CommandResult(status="Finished", return_code=0, stdout="y" * (10 << 20), stderr="e")
    result = CodeResult(status="Success", run_result=flood).bounded()
    assert len(result.stdout) < OUTPUT_LIMIT + 100
    assert result.stdout.endswith("[truncated: 10,485,760 bytes, the first 1,048,576 kept]")
    assert (result.run_result.stdout_truncated, result.run_result.stderr_truncated) == (True, False)
    assert (result.error_kind, result.stderr) == ("none", "e")


def test_what_was_not_said_stays_unsaid():
    assert CodeResult(status="Failed", run_result=LATE).bounded().run_result.stdout is None


def test_importing_the_package_loads_no_http_client_and_no_rq():
    loaded = "import sys, worker; print({'httpx', 'openai', 'rq'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("set()\n", 0), done.stderr


def test_a_worker_that_runs_functions_alone_loads_no_http_client():
    asked = """
import sys
from ground.errors import SettingError
from worker.run.choice import check_choice
from worker.settings import WorkerSettings
try:
    check_choice(WorkerSettings.load(sandbox="fusion", sandbox_fusion_url=""))
except SettingError as refused:
    print("is not set" in str(refused), "httpx" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("True False\n", 0), done.stderr


@pytest.mark.parametrize(("share", "last", "need"), [(0.55, 100, 55), (0.5, 64, 32), (0.5, 5, 3)])
def test_a_breaker_opens_at_its_share_of_the_last_ends(share: float, last: int, need: int) -> None:
    settings = WorkerSettings(breaker_share=share, breaker_last=last)
    assert settings.breaker == (need, last)
