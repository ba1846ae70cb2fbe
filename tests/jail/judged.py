"""Programs to judge, in a sandbox that the tests of judging share."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from jail import LocalSandbox
from jail.judge.asking import request_here
from jail.judge.formats import read_cases
from jail.judge.models import JudgeCase, JudgeRequest, JudgeResult
from jail.judge.suite import InlineSuite

Cases = list[tuple[str, str | None]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[LocalSandbox]:
    """One for all tests of a file."""
    sandbox = LocalSandbox()
    yield sandbox
    await sandbox.close()


async def judge(sandbox: LocalSandbox, code: str, cases: Cases, **given: Any) -> JudgeResult:
    """With limits of time that a busy machine does not reach, and all outputs kept."""
    request = JudgeRequest(
        code=code,
        cases=[JudgeCase(input=text, expected=expected) for text, expected in cases],
        **{"wall_timeout": 100.0, "compile_timeout": 100.0, "keep": "all", **given},
    )
    return await sandbox.judge(request, InlineSuite.of(request.cases or []))


async def judge_row(sandbox: LocalSandbox, code: str, row: Any, **given: Any) -> JudgeResult:
    """On a row of a data set, in any format."""
    options = {"keep": "all", "wall_timeout": 100.0, **given}
    request, suite = request_here(code, read_cases(row), options)  # type: ignore[arg-type]
    return await sandbox.judge(request, suite)


def in_turn(first: str, then: str) -> str:
    """A program that does the one in cases whose input is 0, the other in the rest."""

    def indented(code: str) -> str:
        return "".join(f"    {line}\n" for line in code.strip().split("\n"))

    return f"import os\nif input() == '0':\n{indented(first)}else:\n{indented(then)}"
