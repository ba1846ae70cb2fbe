"""A request is made here of a program, its cases and what is wanted; large suites stay apart from
it."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal, TypedDict

from jail.errors import RequestRefused
from jail.judge.formats import Cases, check_cases, read_cases
from jail.judge.models import (
    CaseLimits,
    Checker,
    Compare,
    JudgeCase,
    JudgeRequest,
    Rule,
    SuiteRef,
)
from jail.judge.suite import InlineSuite

log = logging.getLogger("penstock.judge")
INLINE = 16 << 10  # bytes of cases that go into the job itself, a kilobyte or so compressed

_HERE = "0" * 64  # the suite is in this process


class JudgeOptions(TypedDict, total=False):
    """The fields of a `JudgeRequest` that a caller may choose; `jail/judge/models.py` says what
    they mean."""

    language: str
    files: dict[str, str]
    function: str
    compare: Compare
    checker: Checker
    interactor: Checker
    compile_timeout: float
    run_timeout: float
    wall_timeout: float
    memory_limit_mb: int
    overrides: dict[int, CaseLimits]
    stop: Literal["none", "first"] | int
    stop_timeouts: int | None
    keep: Literal["none", "first_failure", "failures", "all"]
    keep_bytes: int
    keep_total: int
    total_seconds: float
    progress: bool
    labels: dict[str, str]
    cost: int
    correlation_id: str


CaseSource = Cases | Sequence[JudgeCase] | Mapping[str, Any] | Sequence[Any] | str
"""`Cases`, a list of `JudgeCase`, or anything that `read_cases` reads."""


def cases_of(given: CaseSource) -> Cases:
    """Read cases in any form that they may have. Raises `RequestRefused` for what cannot be
    judged."""
    if isinstance(given, Cases):
        return check_cases(given)
    if isinstance(given, Sequence) and given and all(isinstance(one, JudgeCase) for one in given):
        return check_cases(Cases([one for one in given if isinstance(one, JudgeCase)]))
    return read_cases(given)


def queued_request(code: str, cases: Cases, options: JudgeOptions) -> JudgeRequest:
    """The request for a queue: few cases go along, more as a suite (`cases.packed`)."""
    if cases.size <= INLINE:
        return _read(code, cases, options, {"cases": list(cases.cases)})
    return _read(code, cases, options, {"suite": cases.packed.ref})


def request_here(
    code: str, cases: Cases, options: JudgeOptions
) -> tuple[JudgeRequest, InlineSuite]:
    """The request for a sandbox of this process."""
    ref = SuiteRef(sha256=_HERE, count=len(cases.cases))
    return _read(code, cases, options, {"suite": ref}), InlineSuite.of(cases.cases)


def _read(code: str, cases: Cases, options: JudgeOptions, given: dict[str, Any]) -> JudgeRequest:
    """The request by what the dataset says, and over it what the caller says."""
    said = {
        "compare": cases.compare,
        "function": cases.function,
        "values": cases.values,
        "run_timeout": cases.run_timeout,
        "memory_limit_mb": cases.memory_limit_mb,
    }
    fields: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
    fields |= options
    mode = replace(cases, function=fields.get("function")).mode
    if fields.get("interactor"):
        if mode != "stdin":
            raise RequestRefused(f"cases of mode {mode} cannot be judged by an interactor")
        mode = "interactive"
    request = JudgeRequest.read({"code": code, "mode": mode} | fields | given)
    if mode != "interactive" and not request.checker and cases.end_in_blanks:
        _warn_of_blanks(request.compare.rule)
    return request


@cache  # once in a process, for all programs of a data set
def _warn_of_blanks(rule: Rule) -> None:
    if rule in ("exact", "ends"):
        log.warning(
            "an expected output ends in blanks or CR, and the rule %s wants them printed too; "
            "the rule lines does not",
            rule,
        )
