"""`penstock sandbox serve` speaks Sandbox Fusion's contract."""

import asyncio
import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from jail import languages

from .serving import CLIENT, encoded, post, served


@pytest.fixture(scope="module")
def narrow_url() -> Iterator[str]:
    """One place, one may wait, for half a second."""
    yield from served("--concurrency", "1", "--line", "1", "--patience", "0.5")


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
    code = "import time; print('part', flush=True); time.sleep(600)"
    answer = post(url, code=code, run_timeout=10)
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
    assert post(url, code="x = bytearray(200 << 20)")["status"] == "Success"


@pytest.mark.parametrize("route", ["run_code", "run_jupyter"])
def test_a_limit_of_more_digits_than_can_be_shown_is_refused_like_any(url: str, route: str) -> None:
    fields = {"code": "1", "language": "python", "cells": ["1"], "memory_limit_MB": int("9" * 4299)}
    response = CLIENT.post(f"{url}/{route}", json=fields)
    assert (response.status_code, response.json()["status"]) == (200, "SandboxError")
    assert "limit memory is a value of type int" in response.json()["message"]


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


def test_pytest_gets_the_arguments_of_its_request(url: str) -> None:
    code = "def test_one(): pass\ndef test_other(): assert 0, '{}'"
    response = CLIENT.post(
        f"{url}/run_code",
        json={"code": code, "language": "pytest", "args": ["-k", "one", "--basetemp={x}"]},
    )
    if response.status_code == 422:
        pytest.skip("this interpreter has no pytest")
    assert "1 passed, 1 deselected" in response.json()["run_result"]["stdout"]
    refused = {"code": code, "language": "pytest", "args": ["a\0b"]}
    assert CLIENT.post(f"{url}/run_code", json=refused).status_code == 422
    answer = post(url, code="import sys; print(sys.argv[1:])", args=["-k"])  # of pytest alone
    assert answer["run_result"]["stdout"] == "[]\n"


def test_base64_may_be_in_lines(url: str) -> None:
    text = base64.encodebytes(b"x" * 200).decode()
    answer = post(url, code="print(len(open('a').read()))", files={"a": text})
    assert answer["run_result"]["stdout"] == "200\n"


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
    response = CLIENT.post(f"{url}/run_code", json=body)
    assert response.status_code == 422
    assert said in response.json()["detail"][0]["msg"]
    assert response.json()["detail"][0]["loc"][0] == "body"


def test_a_language_that_is_not_installed_is_422_with_what_to_install(url: str) -> None:
    absent = set(languages.LANGUAGES) - set(languages.installed()) - {"pytest"}
    if not absent:
        pytest.skip("every language is installed")
    name = min(absent)
    response = CLIENT.post(f"{url}/run_code", json={"code": "1", "language": name})
    assert response.status_code == 422
    said = response.json()["detail"][0]["msg"]
    assert f"apt-get install {languages.LANGUAGES[name].install}" in said


def test_what_is_not_json_is_422_and_other_routes_are_not_there(url: str) -> None:
    json = {"Content-Type": "application/json"}
    assert CLIENT.post(f"{url}/run_code", content=b"{", headers=json).status_code == 422
    assert CLIENT.get(f"{url}/run_code").status_code == 405
    assert CLIENT.get(f"{url}/nothing").status_code == 404
    assert CLIENT.get(f"{url}/v1/ping").json() == "pong"
    assert CLIENT.get(f"{url}/healthz").json()["isolation"] == "ns"


def test_overload_waits_in_line_and_then_is_504(narrow_url: str) -> None:
    body = {"code": "import time; time.sleep(5)", "language": "python", "run_timeout": 60}

    def status(_: int) -> int:
        return CLIENT.post(f"{narrow_url}/run_code", json=body, timeout=150).status_code

    with ThreadPoolExecutor(4) as clients:
        statuses = sorted(clients.map(status, range(4)))
    assert statuses[0] == 200
    assert statuses[-1] == 504
    assert set(statuses) == {200, 504}


async def test_a_client_that_goes_away_frees_its_place(narrow_url: str) -> None:
    body = {"code": "import time; time.sleep(600)", "language": "python", "run_timeout": 600}
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ReadTimeout):
            waits = httpx.Timeout(30, read=0.3)
            await client.post(f"{narrow_url}/run_code", json=body, timeout=waits)
        short = {"code": "print(1)", "language": "python"}
        async with asyncio.timeout(100):  # it would else have its place for longer
            while (
                answer := await client.post(f"{narrow_url}/run_code", json=short, timeout=150)
            ).status_code == 504:
                pass
    assert answer.json()["status"] == "Success"


def test_many_at_once_all_finish_right(url: str) -> None:
    with ThreadPoolExecutor(32) as clients:
        answers = clients.map(lambda n: post(url, code=f"print({n})"), range(128))
        printed = [answer["run_result"]["stdout"] for answer in answers]
    assert printed == [f"{n}\n" for n in range(128)]


def jupyter(url: str, cells: list[str], **fields: Any) -> dict[str, Any]:
    response = CLIENT.post(f"{url}/run_jupyter", json={"cells": cells, **fields})
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


def test_a_cell_may_have_any_time_that_is_a_number(url: str) -> None:
    """More than the total is none of its own."""
    [cell] = jupyter(url, ["print(1)"], cell_timeout=1e300)["cells"]
    assert (cell["stdout"], cell["error"]) == ("1\n", [])


def test_cells_together_say_no_more_than_the_limit_of_output(url: str) -> None:
    answer = jupyter(url, ["print('x' * 3_000_000)"] * 3)
    assert (answer["status"], answer["driver"]["limit"], len(answer["cells"])) == (
        "Failed", "output", 1,
    )  # fmt: skip


def test_a_cell_that_ends_the_interpreter_is_no_success(url: str) -> None:
    answer = jupyter(url, ["1", "import os; os._exit(0)", "2"])
    assert (answer["status"], len(answer["cells"])) == ("Failed", 1)
    assert answer["message"] == "cell 2 ended the interpreter"
