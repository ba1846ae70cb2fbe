"""The contract of one-shot sandboxes: what a worker relies on when it runs a program.

The programs are Python, small, and need nothing but the standard library. Each function below is
one check; its docstring says what goes wrong in Penstock if the check fails.
"""

import asyncio
import base64
from collections.abc import Mapping

from jail.errors import SandboxFailure, SandboxUnfit
from jail.models import LANGUAGES, OUTPUT_LIMIT, CodeRequest, CodeResult
from jail.protocol import Sandbox
from worker.contract.check import Check, contract, require, same

_SECONDS = 30.0  # a program's time limit, where the check is not about time
_AT_ONCE = 8


def sandbox_contract(exceptions: Mapping[str, str] | None = None) -> list[Check[Sandbox]]:
    """The checks of a working sandbox. `exceptions`: name of a check → why yours fails it."""
    return contract(_WORKING, exceptions or {})


def dead_sandbox_contract(exceptions: Mapping[str, str] | None = None) -> list[Check[Sandbox]]:
    """The checks of a sandbox whose back end is down or cannot be reached."""
    return contract(_DEAD, exceptions or {})


async def it_says_what_it_is(sandbox: Sandbox) -> None:
    """The name goes into logs and metrics; a language that is not listed is refused."""
    require(sandbox.name and sandbox.name.isprintable(), f"name is {sandbox.name!r}")
    languages = sandbox.languages
    require(isinstance(languages, frozenset), f"languages is a {type(languages).__name__}")
    require("python" in languages, f"languages has no 'python': {sorted(languages)}")
    unknown = sorted(languages - LANGUAGES)
    require(not unknown, f"languages has {unknown}, which no CodeRequest can name")


async def a_program_that_succeeds_is_a_success(sandbox: Sandbox) -> None:
    """The reward is decided by `ok`, and the isolation and the seconds go into metrics."""
    result = await _run(sandbox, "print(6 * 7)")
    same("stdout", result.stdout, "42\n")
    same("status", result.status, "Success")
    same("error_kind", result.error_kind, "none")
    same("return_code", result.run_result and result.run_result.return_code, 0)
    require(result.running_seconds > 0, "running_seconds is not set")
    require(result.isolation, "isolation is empty; write 'unknown' if you do not know")


async def a_program_that_fails_is_a_result(sandbox: Sandbox) -> None:
    """An exception instead would be retried, and the sample masked: the model never sees it."""
    result = await _run(sandbox, "import sys; print('said'); sys.exit(3)")
    same("status", result.status, "Failed")
    same("error_kind", result.error_kind, "user")
    same("return_code", result.run_result and result.run_result.return_code, 3)
    same("stdout", result.stdout, "said\n")


async def a_traceback_reaches_the_caller(sandbox: Sandbox) -> None:
    """A model corrects its program from what stderr says."""
    result = await _run(sandbox, "def broken():\n    return 1 / 0\nbroken()")
    same("error_kind", result.error_kind, "user")
    require("ZeroDivisionError" in result.stderr, f"stderr is {result.stderr!r:.200}")


async def a_program_that_crashes_is_a_result(sandbox: Sandbox) -> None:
    """A segmentation fault is the program's own end, and no failure of the sandbox."""
    result = await _run(sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    same("status", result.status, "Failed")
    same("error_kind", result.error_kind, "user")


async def a_program_out_of_time_hits_a_limit(sandbox: Sandbox) -> None:
    """The reward needs to know a slow program from a wrong one."""
    code = "import time; print('so far', flush=True); time.sleep(600)"
    result = await _run(sandbox, code, run_timeout=2)
    same("error_kind", result.error_kind, "limit")
    same("error_reason", result.error_reason, "run_timeout")
    same("status", result.status, "Failed")


async def output_before_the_time_limit_is_kept(sandbox: Sandbox) -> None:
    """The model reads what its program printed until then."""
    code = "import time; print('so far', flush=True); time.sleep(600)"
    same("stdout", (await _run(sandbox, code, run_timeout=10)).stdout, "so far\n")


async def memory_has_a_limit(sandbox: Sandbox) -> None:
    """A program that takes all memory would end the others that run next to it."""
    code = "x = bytearray(400 << 20); print(len(x))"
    result = await _run(sandbox, code, memory_limit_mb=128)
    require(
        result.error_kind in ("user", "limit"), f"error_kind is {result.error_kind!r}, not 'limit'"
    )


async def output_is_bounded(sandbox: Sandbox) -> None:
    """A program that prints without end would fill Redis and the trainer's memory."""
    result = await _run(sandbox, "print('x' * (8 << 20))")
    size = len(result.stdout.encode())
    most = OUTPUT_LIMIT + 1024  # the mark of the cut comes on top
    require(size <= most, f"stdout has {size:,} bytes; use CodeResult.bounded()")
    cut = bool(result.run_result and result.run_result.stdout_truncated)
    require(cut or result.error_kind == "limit", "stdout is shorter, and nothing says so")


async def stdin_arrives_exactly(sandbox: Sandbox) -> None:
    """Test cases are fed by stdin; one changed byte is a wrong verdict."""
    given = "one\r\ntwo\n\n\tü 漢 🙂\\ '\"$HOME`"
    code = "import sys; sys.stdout.write(ascii(sys.stdin.buffer.read()))"
    result = await _run(sandbox, code, stdin=given)
    same("what was read", result.stdout, ascii(given.encode()))


async def a_program_without_stdin_reads_nothing(sandbox: Sandbox) -> None:
    """A program that waits for input that never comes would run into its time limit."""
    result = await _run(sandbox, "import sys; print(len(sys.stdin.read()))")
    same("stdout", result.stdout, "0\n")


async def code_arrives_exactly(sandbox: Sandbox) -> None:
    """Model-written code has quotes, backslashes and other scripts in it."""
    text = "'\"\\n ü 漢 🙂 $(x) `y` %s {z}"
    code = f"import sys\nsys.stdout.buffer.write({text!r}.encode())\n# {'x' * 100_000}"
    same("stdout", (await _run(sandbox, code)).stdout, text)


async def output_that_is_not_text_is_a_result(sandbox: Sandbox) -> None:
    """Results are JSON: a byte that is not UTF-8 is replaced, and fails nothing."""
    result = await _run(sandbox, "import os; os.write(1, b'a\\xffb')")
    same("error_kind", result.error_kind, "none")
    require(
        result.stdout.startswith("a") and result.stdout.endswith("b"),
        f"stdout is {result.stdout!r:.200}",
    )


async def files_go_in_and_come_back(sandbox: Sandbox) -> None:
    """A request may bring files, in folders too, and name those that it wants back."""
    content = bytes(range(256)) * 8
    result = await _run(
        sandbox, "open('out.bin', 'wb').write(open('in/data.bin', 'rb').read()[::-1])",
        files={"in/data.bin": base64.b64encode(content).decode()}, fetch_files=["out.bin", "none"],
    )  # fmt: skip
    same("error_kind", result.error_kind, "none")
    same("the names in files", sorted(result.files), ["out.bin"])
    same("out.bin", base64.b64decode(result.files["out.bin"]), content[::-1])


async def a_program_finds_nothing_of_the_last(sandbox: Sandbox) -> None:
    """A sample that reads another's files is judged by them."""
    code = "import os; print(sorted(os.listdir())); open('left', 'w').write('x')"
    first, second = await _run(sandbox, code), await _run(sandbox, code)
    require("left" not in second.stdout, f"the second program saw {second.stdout!r:.200}")
    same("error_kind of the first", first.error_kind, "none")


async def programs_run_beside_each_other(sandbox: Sandbox) -> None:
    """A worker runs many at once on one instance; each result is its own program's."""
    requests = [
        CodeRequest(code=f"import time; time.sleep(0.2); print({n})", correlation_id=f"c{n}")
        for n in range(_AT_ONCE)
    ]
    results = await asyncio.gather(*(sandbox.run(request) for request in requests))
    same("stdout", [result.stdout for result in results], [f"{n}\n" for n in range(_AT_ONCE)])
    found = [result.correlation_id for result in results]
    same("correlation_id", found, [request.correlation_id for request in requests])


async def a_language_that_it_lacks_is_refused(sandbox: Sandbox) -> None:
    """A language that it lacks raises `SandboxUnfit`, which is not retried; another error would be,
    six times."""
    for language in sorted(LANGUAGES - sandbox.languages)[:1]:
        try:
            await sandbox.run(CodeRequest(code="x", language=language))
        except SandboxUnfit:
            continue
        require(False, f"language {language!r} is not in languages, and was not refused")


async def a_cancelled_program_stops_nothing_else(sandbox: Sandbox) -> None:
    """A job that an operator stops is cancelled: the call ends then, and the next one works."""
    running = asyncio.ensure_future(_run(sandbox, "import time; time.sleep(15)"))
    await asyncio.sleep(0.5)  # nothing says that a program has begun
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=12)
    require(done, "a cancelled run goes on waiting for its program")
    require(running.cancelled(), "a cancelled run did not raise CancelledError")
    same("stdout of the next program", (await _run(sandbox, "print(1)")).stdout, "1\n")


async def what_it_says_beside_the_protocol_is_right(sandbox: Sandbox) -> None:
    """The attributes `outlives`, `unreachable`, `kills_cancelled` and `keeps_sessions` steer
    permits and jobs."""
    request = CodeRequest(code="print(1)", run_timeout=_SECONDS)
    if (outlives := getattr(sandbox, "outlives", None)) is not None:
        seconds = outlives(request)
        require(0 <= seconds < float("inf"), f"outlives(request) is {seconds!r}, no seconds")
    if (unreachable := getattr(sandbox, "unreachable", None)) is not None:
        await sandbox.run(request)
        same("unreachable() from a thread", await asyncio.to_thread(unreachable), [])
    for name in ("kills_cancelled", "keeps_sessions"):
        value = getattr(sandbox, name, False)
        require(isinstance(value, bool), f"{name} is {value!r}, and not True or False")


async def a_session_keeps_its_state_to_itself(sandbox: Sandbox) -> None:
    """Programs of one `instance_id` share files, if the sandbox `keeps_sessions`; no other sees
    them."""
    if not getattr(sandbox, "keeps_sessions", False):
        return
    await _run(sandbox, "open('kept', 'w').write('x')", instance_id="one")
    code = "import os; print(os.path.exists('kept'))"
    same("the same session's", (await _run(sandbox, code, instance_id="one")).stdout, "True\n")
    same("another session's", (await _run(sandbox, code, instance_id="two")).stdout, "False\n")


async def it_may_be_closed_twice(sandbox: Sandbox) -> None:
    """A worker closes what it has as it ends, also what never ran a program."""
    await sandbox.close()
    await sandbox.close()


_WORKING = (
    it_says_what_it_is,
    a_program_that_succeeds_is_a_success,
    a_program_that_fails_is_a_result,
    a_traceback_reaches_the_caller,
    a_program_that_crashes_is_a_result,
    a_program_out_of_time_hits_a_limit,
    output_before_the_time_limit_is_kept,
    memory_has_a_limit,
    output_is_bounded,
    stdin_arrives_exactly,
    a_program_without_stdin_reads_nothing,
    code_arrives_exactly,
    output_that_is_not_text_is_a_result,
    files_go_in_and_come_back,
    a_program_finds_nothing_of_the_last,
    programs_run_beside_each_other,
    a_language_that_it_lacks_is_refused,
    a_cancelled_program_stops_nothing_else,
    what_it_says_beside_the_protocol_is_right,
    a_session_keeps_its_state_to_itself,
    it_may_be_closed_twice,
)


async def a_dead_back_end_is_no_result(sandbox: Sandbox) -> None:
    """A sandbox that fails masks the sample; it is no reward of 0."""
    try:
        result = await _run(sandbox, "print(1)")
    except SandboxFailure as failure:
        reason = failure.reason
        require(reason and reason.isidentifier(), f"reason is {reason!r}, no word for metrics")
        return
    require(False, f"run() returned {result.status!r} and {result.error_kind!r}")


_DEAD = (a_dead_back_end_is_no_result, it_says_what_it_is, it_may_be_closed_twice)


async def _run(sandbox: Sandbox, code: str, **more: object) -> CodeResult:
    return await sandbox.run(CodeRequest.read({"code": code, "run_timeout": _SECONDS} | more))
