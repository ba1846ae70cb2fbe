"""The same program ends in the same words, embedded or behind Penstock's own server."""

import pytest

from jail import LocalSandbox
from jail.fusion.client import SandboxFusion
from jail.models import CodeRequest
from worker.outcomes import program_outcome

PROGRAMS = {
    "x = 'a' * 10**10": ("limit", "memory_limit", "memory"),
    "print('y' * 100_000_000)": ("limit", "output_limit", "limit"),
    "while True: pass": ("limit", "run_timeout", "timeout"),
    "raise SystemExit(3)": ("user", "exit", "error"),
    "import os; os.kill(os.getpid(), 9)": ("user", "signal", "error"),
    "print(1)": ("none", "", "finished"),
}


@pytest.mark.parametrize("code", PROGRAMS)
async def test_a_limit_is_a_limit_embedded_and_behind_the_server(url: str, code: str) -> None:
    request = CodeRequest(
        code=code, memory_limit_mb=256, run_timeout=1.0 if "while" in code else 20
    )
    found = []
    for sandbox in (LocalSandbox(), SandboxFusion(url)):
        result = await sandbox.run(request)
        outcome = program_outcome(result.model_dump())
        found.append((result.error_kind, result.error_reason, outcome))
        await sandbox.close()
    assert found == [PROGRAMS[code]] * 2
