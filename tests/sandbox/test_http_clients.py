"""The clients that upstream's users have: its own SDK, and verl's way of asking."""

import json
from typing import Any

import httpx
import pytest


def sdk() -> Any:
    return pytest.importorskip("sandbox_fusion", reason="upstream's SDK is not installed")


def test_upstreams_sdk_runs_code(url: str) -> None:
    fusion = sdk()
    ran = fusion.run_code(
        fusion.RunCodeRequest(code="print(input())", language="python", stdin="hi\n"),
        endpoint=url,
    )
    assert ran.status == fusion.RunStatus.Success
    assert ran.run_result.stdout == "hi\n"


def test_upstreams_sdk_runs_many_and_summarises(url: str) -> None:
    fusion = sdk()
    fusion.set_endpoint(url)
    requests = [
        fusion.RunCodeRequest(code=f"assert {n} % 2 == 0", language="python") for n in range(20)
    ]
    results = fusion.run_concurrent(fusion.run_code, args=[[r] for r in requests], concurrency=8)
    names = [fusion.summary_run_code_result(r, fusion.SummaryMapping()) for r in results]
    assert [str(getattr(n, "value", n)) for n in names] == ["Success", "Failed"] * 10


async def test_upstreams_sdk_runs_compiled_code_asynchronously(url: str) -> None:
    fusion = sdk()
    request = fusion.RunCodeRequest(code="int main( {", language="cpp")
    ran = await fusion.run_code_async(request, endpoint=url)
    assert ran.status == fusion.RunStatus.Failed
    assert ran.compile_result.return_code == 1
    assert ran.run_result is None


def test_verls_client_semantics(url: str) -> None:
    """The eight fields it posts, and the codes it makes of the answers."""

    def verl(code: str, expected: str, stdin: str = "", timeout: float = 10) -> object:
        payload = {
            "compile_timeout": timeout, "run_timeout": timeout, "code": code, "stdin": stdin,
            "memory_limit_MB": 1024, "language": "python", "files": {}, "fetch_files": [],
        }  # fmt: skip
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        response = httpx.post(
            f"{url}/run_code", headers=headers, content=json.dumps(payload), timeout=30
        )
        answer = response.json()
        run = answer["run_result"]
        if answer["status"] == "SandboxError":
            return -1
        if run["status"] == "TimeLimitExceeded":
            return -3
        if run["return_code"] != 0:
            return -2
        return bool(run["stdout"].rstrip("\n") == expected.rstrip("\n"))

    assert verl("print(int(input()) * 2)", "42\n", "21") is True
    assert verl("print(1)", "2") is False
    assert verl("1 / 0", "") == -2
    assert verl("while True: pass", "", timeout=0.5) == -3


def test_upstreams_sdk_runs_cells(url: str) -> None:
    fusion = sdk()
    ran = fusion.run_jupyter(fusion.RunJupyterRequest(cells=["x = 2", "x * 21"]), endpoint=url)
    assert ran.status == fusion.RunStatus.Success
    assert ran.cells[1].display == [{"text/plain": "42"}]
