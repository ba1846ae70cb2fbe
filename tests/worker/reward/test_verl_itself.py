"""verl's own judgement of a sandbox's answer beside ours: `make conformance`.

Every answer that can be put together of these parts gives the same code and metadata.
"""

import copy
import importlib
import importlib.util
import itertools
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.harness.upstream import module_at
from tests.worker.tool import verl_stubs
from worker.reward import check

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("verl") is None, reason="verl is not installed: make conformance"
)

STATUSES = ("Finished", "Error", "TimeLimitExceeded", "Odd", None)
CODES = (0, 1, None, -9)


def commands(**outputs: tuple[Any, ...]) -> list[Any]:
    """What a compiler or a program may have come to."""
    every = itertools.product(STATUSES, CODES, *outputs.values())
    rows = [dict(zip(("status", "return_code", *outputs), row, strict=True)) for row in every]
    return [None, {}, *(row | {"execution_time": 0.1} for row in rows)]


def with_return_codes(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer as verl is asked. A failed run without a return code says nothing here, as one
    with 0 does; verl takes it for the program's error."""
    asked = copy.deepcopy(answer)
    for command in (asked["compile_result"], asked["run_result"]):
        if asked["status"] == "Failed" and command and command["return_code"] is None:
            command["return_code"] = 0
    return asked


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file alone: what it only imports need not be there."""
    verl_stubs.install()
    folder = Path(str(importlib.import_module("verl").__file__)).parent
    file = folder / "utils" / "reward_score" / "sandbox_fusion" / "utils.py"
    requests: Any = ModuleType("requests")
    requests.exceptions = SimpleNamespace(RequestException=OSError)
    monkeypatch.setitem(sys.modules, "requests", requests)
    return module_at(file)


@pytest.mark.parametrize("status", ["Success", "Failed", "SandboxError", "Odd", None])
def test_every_answer_is_judged_as_verl_judges_it(theirs, monkeypatch, status) -> None:
    logging.disable(logging.CRITICAL)
    answer: dict[str, Any] = {"status": status}
    asked = {theirs: with_return_codes, check: copy.deepcopy}
    for module, of in asked.items():
        monkeypatch.setattr(module, "call_sandbox_api", lambda of=of, **_: (of(answer), None))
    program = check._Program("x", None, "u", None, 5, 256, "python")
    compiled = commands(stderr=(None, "no"))
    ran = commands(stdout=("4\n", None, "5"))
    judged = 0
    try:
        for one, other in itertools.product(compiled, ran):
            answer |= {"compile_result": one, "run_result": other}
            for expected in ("4", 4, None, ""):
                code, metadata = theirs._process_single_case(
                    0, "in", expected, "u", "x", 5, 256, "python"
                )
                ours = program.tried(0, "in", expected, "")
                metadata |= {"api_response": answer, "exit_code": (other or {}).get("return_code")}
                assert (type(ours[0]), ours) == (type(code), (code, metadata)), (answer, expected)
                judged += 1
    finally:
        logging.disable(logging.NOTSET)
    assert judged == len(compiled) * len(ran) * 4
