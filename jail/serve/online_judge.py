"""Sandbox Fusion's and ScaleBox's routes that judge: a completion in, a verdict for each case out.

This server has no datasets: the cases come with the request, in `config.provided_data`. All cases
of a request are one judge's work, so the program is compiled once.
"""

from http import HTTPStatus
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from jail import languages
from jail.errors import RequestRefused
from jail.judge.asking import JudgeOptions, request_here
from jail.judge.completion import code_of, language_named
from jail.judge.formats import Cases, checked_case, read_cases
from jail.judge.models import Checker, Compare, JudgeRequest, JudgeResult
from jail.judge.suite import Suite
from jail.languages import LanguageAbsent
from jail.serve.autoeval import AutoEval

_FUSION = Compare(rule="floats", abs=0.0, rel=1e-5)
_SCALEBOX = Compare(rule="decimals")
_COMPILED = frozenset({"c", "cpp", "go", "java"})
_LONGER = 20.0  # seconds, which upstream gives to programs in other languages, and to tests
_KEPT = 32 << 10
_KEPT_OF_ALL = 4 << 20

Answer = tuple[int, Any]


class Judge(Protocol):
    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult: ...


class Extra(BaseModel):
    run_all_cases: bool = False
    total_timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    special_judge_program: str | None = None
    special_judge_language: str = "python"
    repr_code: bool = False


class JudgeConfig(BaseModel):
    language: str = "python"
    compile_timeout: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)
    run_timeout: float | None = Field(default=None, gt=0, le=3600, allow_inf_nan=False)
    dataset_type: str | None = None
    custom_extract_logic: str | None = None
    provided_data: Any = None
    extra: Extra = Extra()

    @field_validator("extra", mode="before")
    @classmethod
    def _null_is_nothing(cls, extra: Any) -> Any:
        return {} if extra is None else extra

    @field_validator("language", mode="before")
    @classmethod
    def _null_is_python(cls, name: Any) -> Any:
        return "python" if name is None else name

    @field_validator("language")
    @classmethod
    def _language_runs_here(cls, name: str, info: ValidationInfo) -> str:
        name = language_named(name) or name
        try:
            languages.find(name, info.context or ())
        except LanguageAbsent as absence:
            raise ValueError(str(absence)) from None
        return name

    @field_validator("custom_extract_logic")
    @classmethod
    def _runs_no_code_of_its_own(cls, logic: str | None) -> str | None:
        if logic:
            raise ValueError("is code for the server itself, which runs none; extract before")
        return logic


class Submit(BaseModel):
    dataset: str = ""
    id: Any = 0
    completion: str
    config: JudgeConfig = JudgeConfig()


class Evaluate(BaseModel):
    id: Any = 0
    completion: str
    config: JudgeConfig


class GetPrompts(BaseModel):
    dataset: str = ""
    config: JudgeConfig = JudgeConfig()
    offset: int = Field(0, ge=0)
    limit: int = Field(1_000_000, ge=0)


class NotHere(Exception):
    """The request needs what this server does not have."""


async def submit(judge: Judge, asked: Submit) -> Answer:
    """Judge a completion by Sandbox Fusion's rules."""
    row = asked.config.provided_data
    if not isinstance(row, dict):
        raise NotHere(
            f"this server has no data set {asked.dataset!r}: put the problem into "
            "config.provided_data, an object with `test`"
        )
    if task := AutoEval.of(row, asked.config.language):
        return await _tested(judge, asked, task)
    options = _options(asked.config, _FUSION)
    if asked.config.language not in _COMPILED:
        options.setdefault("run_timeout", _LONGER)
    return await _evaluated(judge, asked, row, options)


async def evaluate(judge: Judge, asked: Evaluate) -> Answer:
    """Judge a completion by ScaleBox's rules."""
    options = _options(asked.config, _SCALEBOX)
    return await _evaluated(judge, asked, asked.config.provided_data, options)


async def get_prompts(asked: GetPrompts) -> Answer:
    """The prompts of the problems in the request."""
    rows = asked.config.provided_data
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise NotHere(
            f"this server has no data set {asked.dataset!r}: put its problems into "
            "config.provided_data, a list of objects"
        )
    return HTTPStatus.OK, [
        {
            "id": row.get("id", at),
            "prompt": row.get("prompt") or row.get("content") or row.get("question") or "",
            "labels": row.get("labels") or {},
        }
        for at, row in enumerate(rows)
    ][asked.offset : asked.offset + asked.limit]


class _Texts(NamedTuple):
    """The texts of a submission: what the model wrote, what runs, all with its test, the test."""

    code: str
    program: str
    full: str
    test: str = ""


async def _tested(judge: Judge, asked: Submit, task: AutoEval) -> Answer:
    """Run a row's test with the program: it ends well, or does not."""
    code, _ = code_of(asked.completion, task.written_in) or ("", "")
    program, check = task.with_program(code, asked.config.extra.repr_code)
    options = _options(asked.config, _FUSION)
    options.setdefault("compile_timeout", 2 * _LONGER)
    options.setdefault("run_timeout", _LONGER)
    options |= {"language": task.runs_in, "files": dict(task.files)}
    cases = Cases([checked_case(0, check=check)])
    full = f"{program}\n{check}" if check else program
    return await _answered(judge, asked, _Texts(code, program, full, task.test), cases, options)


async def _evaluated(
    judge: Judge, asked: Submit | Evaluate, given: Any, options: JudgeOptions
) -> Answer:
    cases = read_cases(given)
    code, _ = code_of(asked.completion, asked.config.language) or ("", "")
    return await _answered(judge, asked, _Texts(code, code, code), cases, options)


async def _answered(
    judge: Judge,
    asked: Submit | Evaluate,
    texts: _Texts,
    cases: Cases,
    options: JudgeOptions,
) -> Answer:
    """Judge a program, if the model wrote one."""
    if not texts.code:
        return HTTPStatus.OK, _answer(asked, "", "", texts.test, [])
    request, suite = request_here(texts.program, cases, options)
    result = await judge.judge(request, suite)
    if result.masked_because and not set(result.verdicts) & set("WECTL"):
        return _unknown(result)
    tests = [
        {
            "passed": letter == "P",
            "exec_info": result.of_case(index).dump(),
            "test_info": cases.cases[index].model_dump(),
        }
        for index, letter in enumerate(result.verdicts)
        if letter != "S"
    ]
    return HTTPStatus.OK, _answer(asked, texts.code, texts.full, texts.test, tests) | {
        "accepted": set(result.verdicts) == {"P"}
    }


def _unknown(result: JudgeResult) -> Answer:
    """No failure of the program is known, and its success is not: neither is an answer."""
    why = result.masked_because
    if why.startswith("checker"):
        said = result.message or result.comments.get(result.verdicts.index("M"), "")
        return HTTPStatus.UNPROCESSABLE_ENTITY, {
            "detail": f"the special judge failed, the program did not: {why} {said}".strip()
        }
    return HTTPStatus.GATEWAY_TIMEOUT, {"detail": f"the sandbox failed, the program did not: {why}"}


def _options(config: JudgeConfig, compare: Compare) -> JudgeOptions:
    extra = config.extra
    options: JudgeOptions = {
        "language": config.language,
        "compare": compare,
        "stop": "none" if extra.run_all_cases else "first",
        "keep": "all",
        "keep_bytes": _KEPT,
        "keep_total": _KEPT_OF_ALL,
    }
    if config.compile_timeout is not None:
        options["compile_timeout"] = config.compile_timeout
    if config.run_timeout is not None:
        options["run_timeout"] = config.run_timeout
    if extra.total_timeout is not None:
        options["total_seconds"] = min(extra.total_timeout, 3600.0)
    if extra.special_judge_program:
        language = language_named(extra.special_judge_language) or extra.special_judge_language
        protocol: Literal["scalebox"] = "scalebox"
        try:
            options["checker"] = Checker(
                code=extra.special_judge_program, language=language, protocol=protocol
            )
        except ValueError as wrong:
            raise RequestRefused(f"special_judge_program: {wrong}") from None
    return options


def _answer(
    asked: Submit | Evaluate, code: str, full: str, behind: str, tests: list[Any]
) -> dict[str, Any]:
    return {
        "id": asked.id,
        "accepted": False,
        "extracted_code": code,
        "full_code": full,
        "test_code": behind or None,
        "tests": tests,
        "extracted_type": "fenced" if code else "empty",
        "extra": None,
    }
