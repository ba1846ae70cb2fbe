"""`penstock sandbox serve` speaks Sandbox Fusion's contract, to its own SDK and to verl."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from worker import CodeRequest, WorkerSettings
from worker.sandbox.choice import make_sandbox
from worker.sandbox.local import languages

START = [sys.executable, "-m", "penstock", "sandbox", "serve", "--port", "0"]


def served(*options: str, memory: str = "512", **environment: str) -> Iterator[str]:
    given = {**os.environ, "PENSTOCK_SANDBOX_MEMORY_MB": memory, **environment}
    with subprocess.Popen(
        [*START, *options], stdout=subprocess.PIPE, text=True, env=given
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http"), "it did not start"
        yield url
        server.terminate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    yield from served(memory="256")


@pytest.fixture(scope="module")
def narrow_url() -> Iterator[str]:
    """One place, one may wait, for half a second."""
    yield from served("--concurrency", "1", "--line", "1", "--patience", "0.5")


def post(url: str, **fields: Any) -> dict[str, Any]:
    body = {"language": "python", **fields}
    response = httpx.post(f"{url}/run_code", json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_the_answer_has_every_field_of_upstreams(url: str) -> None:
    answer = post(url, code="print(1)")
    run = answer["run_result"]
    assert (answer["status"], answer["message"], answer["files"]) == ("Success", "", {})
    assert (answer["compile_result"], answer["executor_pod_name"]) == (None, None)
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == (
        "Finished", 0, "1\n", "",
    )  # fmt: skip
    assert 0 < run["execution_time"] < 10
    assert answer["isolation"] == "ns"


def test_a_time_limit_has_no_return_code_and_keeps_its_output(url: str) -> None:
    code = "import time; print('part', flush=True); time.sleep(20)"
    answer = post(url, code=code, run_timeout=0.3)
    run = answer["run_result"]
    assert (answer["status"], run["status"]) == ("Failed", "TimeLimitExceeded")
    assert (run["return_code"], run["stdout"], run["limit"]) == (None, "part\n", "time")


@pytest.mark.parametrize(
    ("code", "return_code", "stderr"),
    [
        ("assert 1 == 2", 1, "AssertionError"),
        ("print('a'", 1, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 11)", -11, ""),
        ("exit(4)", 4, ""),
    ],
)
def test_a_failure_is_finished_with_its_code(
    url: str, code: str, return_code: int, stderr: str
) -> None:
    answer = post(url, code=code)
    run = answer["run_result"]
    assert (answer["status"], run["status"], run["return_code"]) == (
        "Failed", "Finished", return_code,
    )  # fmt: skip
    assert stderr in run["stderr"]


def test_a_memory_limit_is_obeyed_and_told_beside_upstreams_fields(url: str) -> None:
    answer = post(url, code="x = bytearray(200 << 20)", memory_limit_MB=64)
    run = answer["run_result"]
    assert (answer["status"], run["status"], run["limit"]) == ("Failed", "Finished", "memory")
    assert "MemoryError" in run["stderr"]
    assert post(url, code="x = bytearray(200 << 20)")["status"] == "Success"


def test_what_upstream_gets_wrong_is_right_here(url: str) -> None:
    assert len(post(url, code="print('x' * 200_000)")["run_result"]["stdout"]) == 200_001
    left = post(url, code="import subprocess; subprocess.Popen(['sleep', '60']); print(1)")
    assert (left["status"], left["run_result"]["stdout"]) == ("Success", "1\n")
    taken = post(url, code="1", fetch_files=["/etc/shadow"])
    assert taken["files"] == {}
    assert post(url, code="1", files={"../../../etc/x": encoded(b"")})["status"] == "SandboxError"


def test_files_go_in_nested_and_come_back_by_relative_and_absolute_name(url: str) -> None:
    answer = post(
        url,
        code="open('/mnt/b', 'w').write(open('dir1/dir2/a').read()); open('c', 'w').write('c')",
        files={"dir1/dir2/a": encoded(b"in"), "skipped": None, "IGNORE_THIS_FILE": "!"},
        fetch_files=["/mnt/b", "c", "missing"],
    )
    assert answer["files"] == {"/mnt/b": encoded(b"in"), "c": encoded(b"c")}


def test_standard_input_is_exact(url: str) -> None:
    code = "import sys; print(repr(sys.stdin.read()))"
    assert post(url, code=code, stdin="65535\n")["run_result"]["stdout"] == "'65535\\n'\n"


def test_a_file_that_is_not_base64_is_a_sandbox_error(url: str) -> None:
    answer = post(url, code="1", files={"a": "%%%"})
    assert answer["status"] == "SandboxError"
    assert "base64" in answer["message"].lower()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"code": "1", "language": "klingon"}, "klingon"),
        ({"language": "python"}, "Field required"),
        ({"code": "1", "language": "python", "run_timeout": -1}, "greater than 0"),
        ([], "object"),
    ],
)
def test_a_request_that_makes_no_sense_is_422_in_fastapis_shape(
    url: str, body: object, said: str
) -> None:
    response = httpx.post(f"{url}/run_code", json=body)
    assert response.status_code == 422
    assert said in response.json()["detail"][0]["msg"]
    assert response.json()["detail"][0]["loc"][0] == "body"


def test_a_language_that_is_not_installed_is_422_with_what_to_install(url: str) -> None:
    absent = set(languages.LANGUAGES) - set(languages.installed()) - {"pytest"}
    if not absent:
        pytest.skip("every language is installed")
    name = min(absent)
    response = httpx.post(f"{url}/run_code", json={"code": "1", "language": name})
    assert response.status_code == 422
    said = response.json()["detail"][0]["msg"]
    assert f"apt-get install {languages.LANGUAGES[name].install}" in said


def test_what_is_not_json_is_422_and_other_routes_are_not_there(url: str) -> None:
    assert httpx.post(f"{url}/run_code", content=b"{").status_code == 422
    assert httpx.get(f"{url}/run_code").status_code == 405
    assert httpx.get(f"{url}/nothing").status_code == 404
    assert httpx.get(f"{url}/v1/ping").json() == "pong"
    assert httpx.get(f"{url}/healthz").json()["isolation"] == "ns"


def test_overload_waits_in_line_and_then_is_504(narrow_url: str) -> None:
    body = {"code": "import time; time.sleep(1.5)", "language": "python"}

    def status(_: int) -> int:
        return httpx.post(f"{narrow_url}/run_code", json=body, timeout=30).status_code

    with ThreadPoolExecutor(4) as clients:
        statuses = sorted(clients.map(status, range(4)))
    assert statuses[0] == 200
    assert statuses[-1] == 504
    assert set(statuses) == {200, 504}


async def test_a_client_that_goes_away_frees_its_place(narrow_url: str) -> None:
    body = {"code": "import time; time.sleep(60)", "language": "python", "run_timeout": 60}
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{narrow_url}/run_code", json=body, timeout=0.3)
        answer = await client.post(
            f"{narrow_url}/run_code", json={"code": "print(1)", "language": "python"}, timeout=30
        )
    assert answer.json()["status"] == "Success"


def test_many_at_once_all_finish_right(url: str) -> None:
    with ThreadPoolExecutor(32) as clients:
        answers = clients.map(lambda n: post(url, code=f"print({n})"), range(128))
        printed = [answer["run_result"]["stdout"] for answer in answers]
    assert printed == [f"{n}\n" for n in range(128)]


# --- upstream's own SDK ---------------------------------------------------------------------


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


def test_it_ends_in_order_when_told(tmp_path: Any) -> None:
    with subprocess.Popen(START, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert httpx.get(f"{address}/v1/ping").status_code == 200
        began = time.monotonic()
        server.terminate()
        server.wait(30)
    assert time.monotonic() - began < 30


def jupyter(url: str, cells: list[str], **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{url}/run_jupyter", json={"cells": cells, **fields}, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_cells_share_state_and_a_raise_does_not_end_them(url: str) -> None:
    answer = jupyter(
        url,
        [
            "a = 123",
            "a",
            "print(a)",
            "raise RuntimeError('error message')",
            "open('f', 'w').write('x')",
        ],
        fetch_files=["f"],
    )
    assert answer["status"] == "Success"
    assert (answer["driver"]["status"], answer["driver"]["return_code"]) == ("Finished", 0)
    assert [len(cell["error"]) for cell in answer["cells"]] == [0, 0, 0, 1, 0]
    assert answer["cells"][1]["display"] == [{"text/plain": "123"}]
    assert answer["cells"][2]["stdout"] == "123\n"
    assert answer["cells"][3]["error"][0]["evalue"] == "error message"
    assert answer["files"] == {"f": encoded(b"x")}


def test_cells_beyond_the_total_time_are_cut_off(url: str) -> None:
    answer = jupyter(url, ["1", "while True: pass", "2"], total_timeout=1.0)
    assert answer["status"] == "Failed"
    assert answer["driver"]["status"] == "TimeLimitExceeded"
    assert len(answer["cells"]) <= 2


def test_upstreams_sdk_runs_cells(url: str) -> None:
    fusion = sdk()
    ran = fusion.run_jupyter(fusion.RunJupyterRequest(cells=["x = 2", "x * 21"]), endpoint=url)
    assert ran.status == fusion.RunStatus.Success
    assert ran.cells[1].display == [{"text/plain": "42"}]


def test_the_self_test_shows_each_probe_and_what_it_met() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "sandbox", "selftest", "--json"],
        capture_output=True,
        check=True,
    )
    facts = json.loads(ran.stdout)
    assert facts["isolation"] == "ns"
    assert all(probe["refused"] for probe in facts["probes"])


def test_the_level_none_is_loud_and_in_every_answer() -> None:
    with subprocess.Popen(
        [*START, "--level", "none", "--python", "/usr/bin/python3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().strip()
        if url:
            answer = post(url, code="print(1)")
            assert (answer["status"], answer["isolation"]) == ("Success", "none")
            assert httpx.get(f"{url}/healthz").json()["isolation"] == "none"
        server.terminate()
        said = server.stderr.read()
    if not url:
        pytest.skip(f"no interpreter for an ordinary user here: {said}")
    assert "UNCONFINED" in said


def test_a_setting_without_sense_is_refused_by_name() -> None:
    ran = subprocess.run(
        [*START, "--expose", "relative/path"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "PENSTOCK_SANDBOX_EXPOSE" in ran.stderr


def test_a_token_is_asked_of_everybody_when_one_is_set(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret\n")
    for url in served(memory="256", PENSTOCK_SANDBOX_TOKEN_FILE=str(secret)):
        body = {"language": "python", "code": "print(1)"}
        for given in ({}, {"Authorization": "Bearer wrong"}):
            assert httpx.post(f"{url}/run_code", json=body, headers=given).status_code == 401
            assert httpx.get(f"{url}/metrics", headers=given).status_code == 401
        assert httpx.get(f"{url}/healthz").json()["status"] == "healthy"
        known = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{url}/run_code", json=body, headers=known).json()["status"] == "Success"
        figures = httpx.get(f"{url}/metrics", headers=known).text
        assert 'penstock_sandbox_programs_total{outcome="finished"} 1.0' in figures
        assert "process_open_fds" in figures


async def test_a_worker_shows_the_sandboxs_token() -> None:
    for url in served(memory="256", PENSTOCK_SANDBOX_TOKEN="secret"):
        settings = WorkerSettings.load(sandbox_fusion_url=url, sandbox_token="secret")
        sandbox = make_sandbox(settings)
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
        await sandbox.close()
