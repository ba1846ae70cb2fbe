"""verl's reward functions over a sandbox: the same signatures, codes and metadata.

One deviation is the point of it: where a sandbox or Redis failed, `compute_score` raises
`RewardUnknown` instead of returning a score that the program did not earn.
"""

import json
import logging
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from ground import PenstockError, SettingError
from ground.numbers import shown
from ground.process import from_thread
from jail.errors import RequestRefused, SandboxBroken
from jail.judge.asking import JudgeOptions
from jail.judge.completion import code_as_verl, language_named
from jail.judge.formats import Cases, checked_case
from jail.judge.models import JudgeResult
from jail.judge.program import marked, program_of
from jail.models import OUTPUT_LIMIT
from worker.place import Place, place_of
from worker.queue.code_queue import CodeQueue
from worker.reward.api import FAILED, FLOODED, NO_LANGUAGE, Answer, call_sandbox_api
from worker.reward.semaphore import Semaphore, holding
from worker.reward.verl_codes import Code, blank, is_unknown, judged
from worker.settings import RewardSettings

Metadata = dict[str, Any]


class RewardUnknown(PenstockError):
    """There is no score, for no fault of the program: neither 0 nor any other number is true.

    `results` and `metadata` are what `check_correctness` returned; `unknown` are the metadata
    of the cases without outcome.
    """

    def __init__(
        self, results: list[Any], metadata: list[Metadata], unknown: list[Metadata]
    ) -> None:
        why = str(unknown[0]["api_request_error"] or unknown[0]["status"]).rstrip(".?")
        super().__init__(
            f"{len(unknown)} of {len(results)} cases have no outcome, one because: {why}. Mask the"
            " sample; or set PENSTOCK_REWARD_FAILURES=zero to have a score of 0 instead"
        )
        self.results = results
        self.metadata = metadata
        self.unknown = unknown


log = logging.getLogger("penstock.reward")

DEFAULT_TIMEOUT = 10
CONTINUOUS_CASES = 10


def compute_score(
    sandbox_fusion_url: str | CodeQueue,
    concurrent_semaphore: Semaphore | None,
    memory_limit_mb: int,
    completion: str,
    test_cases: dict[str, Any] | str,
    continuous: bool = False,
    timeout: int = DEFAULT_TIMEOUT,
    language: str | None = None,
) -> tuple[float, list[Metadata]]:
    """The share of cases that the program in the completion passes, and each case's metadata.

    `test_cases` are those of `check_correctness`, or their JSON; `assert_case` alone is enough.
    With `continuous` only the first 10 cases count. The program is in the `language`, or in the
    one that its fence names (```c++, ```golang; Python if it names none). A named one that nobody
    runs is the program's fault.
    Raises `RewardUnknown` if a case that counts has no outcome, or returns 0.0 where
    PENSTOCK_REWARD_FAILURES is `zero`.
    """
    found = code_as_verl(completion, language and (language_named(language) or language))
    if found is None:
        return 0.0, [{"error": "Invalid completion (missing code block)"}]
    cases = _read(test_cases)
    if cases is None:
        return 0.0, [{"error": "Invalid test_cases JSON format"}]
    cases = {name: value for name, value in cases.items() if value is not None}
    if (asserts := _list(cases.get("assert_case"))) is not None:
        blank_cases = {"inputs": [""] * len(asserts), "outputs": [None] * len(asserts)}
        empty = [name for name in blank_cases if _list(cases.get(name)) == []]
        cases = blank_cases | {name: cases[name] for name in cases if name not in empty}
    if "inputs" not in cases or "outputs" not in cases:
        return 0.0, [{"error": "Invalid test_cases structure (missing inputs/outputs)"}]
    if _taken(cases) is None:
        return 0.0, [{"error": f"Invalid test_cases structure ({_STRUCTURE})"}]
    results, metadata = check_correctness(
        sandbox_fusion_url,
        cases,
        found[0],
        timeout,
        memory_limit_mb,
        language=found[1],
        concurrent_semaphore=concurrent_semaphore,
    )
    if language is None and found[1] != "python":
        _fail_where_the_language_is_absent(results, metadata)
    counted = min(len(results), CONTINUOUS_CASES) if continuous else len(results)
    return _share_passed(results, metadata, counted), metadata


def check_correctness(
    sandbox_fusion_url: str | CodeQueue,
    in_outs: dict[str, Any] | None,
    generation: str,
    timeout: int = DEFAULT_TIMEOUT,
    memory_limit_mb: int = 1024,
    language: str = "python",
    concurrent_semaphore: Semaphore | None = None,
) -> tuple[list[Any], list[Metadata]]:
    """Each case's code and metadata, in the order of the inputs; `verl_codes.py` lists the codes.

    `in_outs` has `inputs` and `outputs`. It may have `assert_case`, code that runs after the
    program, one per case, and `fn_name`, the function to call with the inputs. A case of
    assertions with a blank input and no output does not call the function.
    On a queue all cases are one job, in which the program is compiled once. The workers hold the
    permits, and `concurrent_semaphore` is not taken. `local`, the embedded sandbox of this process,
    judges them in one call. A server is asked for each case.
    """
    taken = _taken(in_outs)
    if taken is None:
        return [-1], [{"error": "Invalid input/output data"}]
    inputs, outputs, asserts, function = taken
    if len(inputs) == 0:
        return [], []
    if not len(inputs) == len(outputs) == len(asserts):
        error = "Input/output count mismatch"
        return [-1] * len(inputs), [
            {"error": error, "case_index": index} for index in range(len(inputs))
        ]
    inputs, outputs = _writable("inputs", inputs), _writable("outputs", outputs)
    function = function if language == "python" else None
    place = _judge_of(sandbox_fusion_url)
    workers_hold = place is not None and place.takes_permits
    program = _Program(
        generation, function, sandbox_fusion_url, None if workers_hold else concurrent_semaphore,
        timeout, memory_limit_mb, language,
    )  # fmt: skip
    if place is not None:
        judged = _judged_at_once(program, place, inputs, outputs, asserts)
        if judged is not None:
            return judged
    return _all_tried(program, inputs, outputs, asserts)


_STRUCTURE = "inputs and outputs are lists, assert_case a list of texts, fn_name is text"


def _taken(
    in_outs: dict[str, Any] | None,
) -> tuple[list[Any], list[Any], list[str], str | None] | None:
    """Inputs, outputs, assertions and the function; None if they are not what `_STRUCTURE` says."""
    given = in_outs if isinstance(in_outs, dict) else {}
    inputs, outputs = _list(given.get("inputs")), _list(given.get("outputs"))
    asserts, function = given.get("assert_case"), given.get("fn_name")
    if inputs is None or outputs is None:
        return None
    checks = [""] * len(inputs) if asserts is None else _list(asserts)
    if checks is None or not all(isinstance(check, str) for check in checks):
        return None
    return (inputs, outputs, checks, function) if isinstance(function, str | None) else None


def _writable(name: str, values: list[Any]) -> list[Any]:
    """The values, as lists where they are arrays. Refuses one that has no text for a program to
    read, or to print."""
    found = []
    for index, value in enumerate(values):
        try:
            found.append(_without_arrays(value))
            str(found[-1])
        except (ValueError, RecursionError):
            said = f"case {index} has in {name} {shown(value)}: give what str() can write"
            raise RequestRefused(said) from None
    return found


def _list(value: Any) -> list[Any] | None:
    """A list, or what a data set has as one: a tuple, or an array of numpy's."""
    if callable(convert := getattr(value, "tolist", None)):
        value = convert()
    return list(value) if isinstance(value, list | tuple) else None


def _without_arrays(value: Any) -> Any:
    """Put lists in the place of numpy's arrays within it, which write themselves otherwise."""
    if callable(convert := getattr(value, "tolist", None)):
        value = convert()
    if isinstance(value, list):
        return [_without_arrays(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_arrays(each) for key, each in value.items()}
    return value


def _judge_of(sandbox: str | CodeQueue) -> Place | None:
    """The place that judges all cases at once. None: a server, or what is none, which verl's call
    is made to for each case."""
    try:
        place = place_of(sandbox or "")
    except SettingError:
        return None
    return None if place.server else place


def _judged_at_once(
    program: "_Program",
    place: Place,
    inputs: list[Any],
    outputs: list[Any],
    asserts: list[str],
) -> tuple[list[Any], list[Metadata]] | None:
    """All cases are judged by one job, or one call. None: a case is such that no judge takes it."""
    try:
        cases = Cases(
            [
                checked_case(
                    index, input="" if given is None else str(given),
                    expected=None if expected is None else str(expected), check=check,
                )
                for index, (given, expected, check) in enumerate(
                    zip(inputs, outputs, asserts, strict=True)
                )
            ],
            program.function,
            values=False,
        )  # fmt: skip
        with holding(program.semaphore):
            result = from_thread(place.judge(program.code, cases, program.options))
    except RequestRefused:
        return None  # a request for each says which one is wrong
    except PenstockError as failure:  # the gate's: no permit, so no program
        result = JudgeResult(verdicts="M" * len(inputs), error_reason=str(failure))
    except Exception as failure:  # a semaphore's whose manager has died, for one
        log.exception("a program has no outcome")
        why = f"{type(failure).__name__}: {failure}"
        result = JudgeResult(verdicts="M" * len(inputs), error_reason=why)
    if tried := result.verdicts.find("C") + 1:  # as verl: the others are not tried
        rest = "C" * (len(inputs) - tried)
        result = result.model_copy(update={"verdicts": result.verdicts[:tried] + rest})
    pairs = [
        program.said_of(result, index, given, expected)
        for index, (given, expected) in enumerate(zip(inputs, outputs, strict=True))
    ]
    return [code for code, _ in pairs], [metadata for _, metadata in pairs]


def _all_tried(
    program: "_Program", inputs: list[Any], outputs: list[Any], asserts: list[str]
) -> tuple[list[Any], list[Metadata]]:
    with ThreadPoolExecutor(min(len(inputs), max(32, (os.cpu_count() or 1) * 5))) as threads:
        cases = zip(range(len(inputs)), inputs, outputs, asserts, strict=True)
        running = [threads.submit(program.tried, *case) for case in cases]
        try:
            return _gathered(running, inputs, outputs)
        except BaseException:  # Ctrl-C: do not wait for what has not begun
            threads.shutdown(wait=False, cancel_futures=True)
            raise


@dataclass(frozen=True)
class _Program:
    """A program, and how it is run for every case."""

    code: str
    function: str | None
    sandbox: str | CodeQueue
    semaphore: Semaphore | None
    timeout: int
    memory_limit_mb: int
    language: str

    def tried(self, index: int, given: Any, expected: Any, check: str) -> tuple[Code, Metadata]:
        stdin = None if given is None else str(given)
        output = None if expected is None else str(expected)
        program = program_of(self.language, self.code, check, self.function, stdin, output)
        program, mark = marked(self.language, program, check)
        answer, error = self._answer(program, stdin)
        if answer == FLOODED and len(output or "") > OUTPUT_LIMIT:  # it may be right
            answer, error = None, f"{FAILED}{FLOODED['message']}"
        answer, reached = _without(mark, answer)
        metadata = blank(index, stdin, expected, error)
        try:
            code = judged(metadata, answer, expected)
            if code is True and not reached:  # it ended itself before its check
                code, metadata["status"] = -2, "runtime_error"
            return code, metadata
        except SandboxBroken as unreadable:
            wrong = f"Internal execution error: {unreadable}"
            return -1, metadata | {"status": "internal_error", "api_request_error": wrong}

    @property
    def options(self) -> JudgeOptions:
        """How a judge is asked for the same; of outputs comes back what metadata can hold."""
        return {
            "language": self.language,
            "compile_timeout": self.timeout,
            "run_timeout": self.timeout,
            "memory_limit_mb": self.memory_limit_mb,
            "stop_timeouts": None,
            "keep": "all",
            "keep_bytes": 32 << 10,
            "keep_total": 4 << 20,
        }

    def said_of(
        self, result: JudgeResult, index: int, given: Any, expected: Any
    ) -> tuple[Code, Metadata]:
        """A verdict in verl's codes and keys."""
        letter, of_case = result.verdicts[index], result.of_case(index)
        said = of_case.message or result.comments.get(index, "")
        why = f"{FAILED}{of_case.error_reason}: {said}"
        metadata = blank(index, given, expected, why if letter in "MS" else None)
        if letter in "MS":
            return judged(metadata, None, expected), metadata
        # What was printed may have come back in part: the letter knows.
        code = judged(metadata, of_case.dump(), None)
        if letter == "W":
            code, metadata["status"] = False, "wrong_answer"
        elif letter == "C" and "C" in result.verdicts[:index]:
            metadata["status"] = "compile_error_skipped"
        return code, metadata

    def _answer(self, code: str, stdin: str | None) -> tuple[Answer | None, str | None]:
        try:
            with holding(self.semaphore):
                return call_sandbox_api(
                    sandbox_fusion_url=self.sandbox,
                    code=code,
                    stdin=stdin,
                    compile_timeout=self.timeout,
                    run_timeout=self.timeout,
                    memory_limit_mb=self.memory_limit_mb,
                    language=self.language,
                )
        except PenstockError as failure:  # the gate's: no permit, so no program
            return None, f"{FAILED}{failure}"
        except Exception as failure:  # a semaphore's whose manager has died, for one
            log.exception("a case has no outcome")
            return None, f"API Request Exception: {type(failure).__name__}: {failure}"


def _without(mark: str, answer: Answer | None) -> tuple[Answer | None, bool]:
    """The answer without the mark in its output, and whether it is one that came to the mark."""
    ran = answer.get("run_result") if answer else None
    if not answer or not mark or not isinstance(ran, dict):
        return answer, not mark
    printed = str(ran.get("stdout") or "")
    without = answer | {"run_result": ran | {"stdout": printed.replace(mark, "")}}
    return (without, True) if mark in printed else (answer, False)


def _fail_where_the_language_is_absent(results: list[Any], metadata: list[Metadata]) -> None:
    """Cases whose fence named a language that the sandbox lacks did not compile. If they were
    masked, any model could have its sample masked by a word."""
    for index, case in enumerate(metadata):
        why = case.get("api_request_error") or ""
        if why.startswith(NO_LANGUAGE):
            results[index] = -4
            case |= {"status": "compile_error", "api_request_error": None, "compile_stderr": why}


def _share_passed(results: list[Any], metadata: list[Metadata], counted: int) -> float:
    """The share of the first so many that passed."""
    if counted == 0 or any("error" in case for case in metadata):
        return 0.0
    pairs = zip(results[:counted], metadata[:counted], strict=True)
    if unknown := [case for result, case in pairs if is_unknown(result, case)]:
        if RewardSettings.load().reward_failures == "raise":
            raise RewardUnknown(results, metadata, unknown)
        return 0.0
    return sum(result is True for result in results[:counted]) / counted


def _gathered(
    running: list[Future[tuple[Code, Metadata]]], inputs: list[Any], outputs: list[Any]
) -> tuple[list[Any], list[Metadata]]:
    """The codes and metadata of all cases, in the order of the inputs. What does not compile is not
    tried on the cases that follow."""
    results: list[Any] = []
    all_metadata: list[Metadata] = []
    for index, case in enumerate(running):
        if -4 not in results:
            result, metadata = case.result()
        else:
            skipped = None, blank(index, inputs[index], outputs[index], None)
            own, metadata = skipped if case.cancel() else case.result()
            result = -4
            if own != -4:
                metadata["status"] = "compile_error_skipped"
        results.append(result)
        all_metadata.append(metadata)
    return results, all_metadata


def _read(test_cases: dict[str, Any] | str) -> dict[str, Any] | None:
    if isinstance(test_cases, dict):
        return test_cases
    try:
        read = json.loads(test_cases)
    except (ValueError, TypeError, RecursionError):
        return None
    return read if isinstance(read, dict) else {}
