"""A grader gives the value of what a model wrote over its cases, or None if our side failed.

    grader = Grader()                                  # in the trainer, or in any of its processes
    grade = await grader.grade(completion, row["ground_truth"])
    grade.value, grade.reason                          # 0.5, "wrong"; or None, "QueueUnavailable"

Trainers mask in different ways, or not at all. So nothing here decides what happens to a None: each
host's file says it in its host's words.
"""

import asyncio
import json
import logging
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakValueDictionary

from ground import PenstockError, SettingError
from ground.numbers import check_number
from ground.process import from_thread
from jail.errors import RequestRefused
from jail.judge.asking import INLINE, JudgeOptions, request_here
from jail.judge.completion import code_of
from jail.judge.fault import Fault
from jail.judge.formats import Cases, read_cases
from jail.judge.models import LONGEST, JudgeCase, JudgeResult
from worker.errors import TrainingPaused
from worker.hosts.grades_breaker import breaker_here
from worker.place import Place, place_of
from worker.reward.scoring import score_of
from worker.settings import WhenPaused, check_when_paused

log = logging.getLogger("penstock.reward")

# A program that is slow has its verdict before its grade is given up, which would mask it.
_OF_TIMEOUT = 0.75

# With which a model ends its text, and which slime and OpenRLHF leave there.
_LAST_TOKEN = re.compile(r"<(?:[|｜]?[\w▁]+[|｜]|/s|eos|end_of_turn)>\s*\Z")


@dataclass(frozen=True)
class Grade:
    """A grade: `value` is the share of cases passed, from 0 to 1; or None, masked: it is not known.

    `reason` is a word for machines: why it is masked, or why a program did not pass. `message` is
    for people, and says more where it is masked. `fault` says whose it is: `program`, `data` if no
    program could be graded on this row, or `system`. `evidence` is what that stands on.
    """

    value: float | None
    reason: str = ""
    message: str = ""
    fault: Fault = field(default="", compare=False)  # it follows from the reason
    evidence: str = field(default="", compare=False)
    job: str = field(default="", compare=False)

    @property
    def masked(self) -> bool:
        """Whether the sandbox or Penstock failed, not the program: then no number is true."""
        return self.value is None


@dataclass(frozen=True)
class Grader:
    """A grader grades what models write. It may be pickled, and used after a fork, in any loop or
    thread.

    Nothing is opened before the first call. A process has one queue, or one embedded sandbox, for
    all its graders.

    on              where programs run: `redis://…`, a queue's Redis; `local`, the embedded sandbox
                    of this process; `http://…`, a Sandbox Fusion. Unset: PENSTOCK_REDIS_URL, or
                    without that the embedded sandbox
    queue           the queue's name
    language        the programs' language; None: the one that a completion's fence names, and
                    one that the sandbox does not run is a 0
    fenced          the program is in a fence, ```python. False: all of the text is the program,
                    but for a special token at its end, such as <|im_end|>
    all_or_nothing  1.0 if all cases pass, else 0.0; the first that fails ends the judging
    compare         a rule of comparison, in place of the data set's
    case_timeout    seconds of processor time per case, in place of the data set's, or of 10
    memory_limit_mb  in place of the data set's, or of the sandbox's own
    timeout         seconds until a grade is given up, and masked; the cases together may run for
                    three quarters of it, and then the slow ones have failed
    patience        seconds for which a Redis that does not answer is asked again
    share           the share of the queue that its programs belong to. None: PENSTOCK_SHARE
    when_paused     what a grade does while the breaker of its queue is open: `wait`, or `raise`
                    `TrainingPaused`. With `raise` this process has a breaker too, for all that
                    keeps grades from being known: a Redis that is away, a queue without workers
    """

    on: str | None = field(default=None, repr=False)  # it may hold a password
    queue: str = "code"
    language: str | None = "python"
    fenced: bool = True
    all_or_nothing: bool = False
    compare: str | None = None
    case_timeout: float | None = None
    memory_limit_mb: int | None = None
    timeout: float = 3600.0
    patience: float = 60.0
    share: str | None = None
    when_paused: WhenPaused = "wait"

    def __post_init__(self) -> None:
        check_number("timeout", self.timeout, above=True)
        check_when_paused(self.when_paused)
        try:
            request_here("", _BLANK, self._options(self.language or "python"))
        except RequestRefused as refusal:
            raise SettingError("Grader", str(refusal)) from None
        self._place("redis://localhost" if self.on is None else self.on)  # refused now

    async def grade(self, text: Any, truth: Any) -> Grade:
        """The grade of a completion, text or messages. Raises nothing but cancellation, and
        `TrainingPaused` if that is asked for."""
        try:
            program = self._program_in(text_of(text))
        except RequestRefused as refusal:
            return _unreadable(refusal)
        if program is None:
            return Grade(0.0, "no_code", fault="program")
        return await self.grade_code(program[0], truth, program[1])

    async def grade_code(self, code: str, truth: Any, language: str | None = None) -> Grade:
        """Grade a program that is here by itself, without the text around it."""
        language = language or self.language or "python"
        if self.when_paused == "wait":  # it is the queue that waits
            return await self._in_time(code, truth, language)
        breaker = breaker_here(f"{self.on} {self.queue}")
        if breaker is None:
            return await self._in_time(code, truth, language)
        began = breaker.begin()
        try:
            grade = await self._in_time(code, truth, language)
        except BaseException:
            breaker.break_off(began)
            raise
        breaker.end(grade.fault, began)
        return grade

    async def _in_time(self, code: str, truth: Any, language: str) -> Grade:
        try:
            async with asyncio.timeout(self.timeout):
                return await self._graded(code, truth, language)
        except TimeoutError:
            return _masked("DeadlineExceeded", f"there was no grade within {self.timeout:g} s")
        except TrainingPaused:
            raise
        except RequestRefused as refusal:
            return _unreadable(refusal)
        except PenstockError as failure:
            return _masked(type(failure).__name__, str(failure))
        except Exception as failure:  # a reward function that raises ends a training run
            log.exception("a program has no grade")
            why = f"{type(failure).__name__}: {failure}"
            return Grade(None, "internal_error", why, "system")

    def grade_sync(self, text: Any, truth: Any) -> Grade:
        """Grade in a thread without an event loop."""
        return from_thread(self.grade(text, truth))

    def _program_in(self, text: str) -> tuple[str, str] | None:
        text = _LAST_TOKEN.sub("", text)
        if not self.fenced:
            return text, self.language or "python"
        return code_of(text, self.language)

    async def _graded(self, code: str, truth: Any, language: str) -> Grade:
        cases = await _cases_here(truth)
        options, of_model = self._options(language), JudgeOptions()
        if self.language is None and language != "python":
            options, of_model = self._options("python"), JudgeOptions(language=language)
        result = await self._place(self.on).judge(code, cases, options, of_model)
        grade = self._grade_of(result)
        if grade.masked:
            log.warning("a program has no grade: %s", grade.message or grade.reason)
        return grade

    def _place(self, on: str | None) -> Place:
        return place_of(
            on, queue=self.queue, share=self.share, patience=self.patience,
            at_once=1,  # many programs are graded at once: a server gets one case of each
            when_paused=self.when_paused,
        )  # fmt: skip

    def _grade_of(self, result: JudgeResult) -> Grade:
        found = score_of(result, all_or_nothing=self.all_or_nothing)
        job = result.correlation_id  # a queue's jobs have their id there, unless it is chosen
        if found.value is None:
            reason = found.reason.partition(":")[0] or "unknown"
            fault = result.fault_of_mask or "system"
            evidence = next(
                (text for at, text in result.evidence.items() if result.fault(at) == fault), ""
            )
            return Grade(None, reason, result.message, fault, evidence, job)
        failed = next(
            (at for at, case in enumerate(found.cases) if case.known and not case.passed), None
        )
        if failed is None:
            return Grade(found.value, job=job)
        reason = result.reasons.get(failed) or found.cases[failed].verdict
        evidence = result.evidence.get(failed, "")
        return Grade(found.value, reason, result.message, "program", evidence, job)

    def _options(self, language: str) -> JudgeOptions:
        given: dict[str, Any] = {
            "compare": {"rule": self.compare} if self.compare else None,
            "run_timeout": self.case_timeout,
            "memory_limit_mb": self.memory_limit_mb,
            "stop": "first" if self.all_or_nothing else None,
            "total_seconds": min(LONGEST, _OF_TIMEOUT * self.timeout),
        }
        chosen = {name: one for name, one in given.items() if one is not None}
        return cast(JudgeOptions, {"language": language, "keep": "none"} | chosen)


def cases_of(truth: Any) -> Cases:
    """The cases of a row, in any format that `jail.judge.read_cases` reads: objects or JSON.

    Arrays, as data sets have them, are lists. Raises `RequestRefused` for what is no such format.
    """
    return truth if isinstance(truth, Cases) else read_cases(_as_json(truth))


def text_of(completion: Any) -> str:
    """The text that the model wrote, from text, a message, or the last message that has text.

    Raises `RequestRefused` for what is none of these: such a row says nothing of the model.
    """
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        return _content(completion.get("content"))
    if isinstance(completion, Sequence) and all(isinstance(one, Mapping) for one in completion):
        said = [one for one in completion if one.get("role", "assistant") == "assistant"]
        texts = [_content(one.get("content")) for one in said]
        return next((text for text in reversed(texts) if text.strip()), "")
    raise RequestRefused(f"a completion is text or messages, not {type(completion).__name__}")


def _content(content: Any) -> str:
    """The content of a message: text, nothing beside tool calls, or parts of which some are
    text."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence):
        parts = [one.get("text") for one in content if isinstance(one, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    raise RequestRefused(f"a message's content is text or parts, not {type(content).__name__}")


_BLANK = Cases([JudgeCase()])


def _as_json(truth: Any) -> str:
    if isinstance(truth, str):
        return truth
    try:
        return truth.decode() if isinstance(truth, bytes) else json.dumps(truth, default=_listed)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise RequestRefused(f"the cases are neither JSON nor made of it: {wrong!s:.200}") from None


def _listed(value: Any) -> Any:
    """Arrays and numbers of numpy, pandas and pyarrow, without importing them."""
    for method in ("tolist", "to_pylist"):
        if callable(convert := getattr(value, method, None)):
            return convert()
    if isinstance(value, bytes):
        return value.decode()
    raise TypeError(f"{type(value).__name__} is not JSON")


class _Problem:
    """A row's cases, read once for all completions that are graded on them at the time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._guard = threading.Lock()
        self._cases: Cases | None = None

    def read(self) -> Cases:
        with self._guard:
            if self._cases is None:
                self._cases = read_cases(self._text)
                if self._cases.size > INLINE:
                    _ = self._cases.packed  # as a queue needs them
            return self._cases


# By process, since a fork may copy a lock that is held. Nothing is kept that nobody grades on.
_problems: WeakValueDictionary[tuple[int, str], _Problem] = WeakValueDictionary()


async def _cases_here(truth: Any) -> Cases:
    if isinstance(truth, Cases):
        return truth
    text = _as_json(truth)
    key = os.getpid(), text
    problem = _problems.get(key)
    if problem is None:
        problem = _problems.setdefault(key, _Problem(text))
    if len(text) <= INLINE:
        return problem.read()
    return await asyncio.to_thread(problem.read)


def _unreadable(refusal: RequestRefused) -> Grade:
    return _masked("unreadable", f"the row cannot be graded: {refusal}", "data")


def _masked(reason: str, message: str, fault: Fault = "system") -> Grade:
    log.warning("a program has no grade: %s", message or reason)
    return Grade(None, reason, message, fault)
