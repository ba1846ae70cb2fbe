"""The clients that upstream's users have: its own SDK, and verl's way of asking."""

import json
from typing import Any

import pytest

from .serving import CLIENT, encoded


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


# What upstream's own tests ask of `/run_code`: the request, then parts of the answer.
UPSTREAMS = [
    ("print", {"code": "print(123)"}, "Success", {"stdout": "123\n", "return_code": 0}),
    (
        "time limit",
        {"code": "import time; time.sleep(600)", "run_timeout": 0.5},
        "Failed",  # that what it printed is kept, `test_http.py` has with a longer limit
        {"status": "TimeLimitExceeded", "return_code": None},
    ),
    ("assertion", {"code": "assert 1 == 2"}, "Failed", {"status": "Finished", "return_code": 1}),
    ("syntax", {"code": "print('a'"}, "Failed", {"status": "Finished", "return_code": 1}),
    (
        "nested files",
        {"code": "print(open('dir1/dir2/a').read())", "files": {"dir1/dir2/a": "aW4="}},
        "Success",
        {"stdout": "in\n"},
    ),
    (
        "exact stdin",
        {"code": "import sys; print(repr(sys.stdin.read()))", "stdin": "65535\n"},
        "Success",
        {"stdout": "'65535\\n'\n"},
    ),
    ("bash", {"code": "echo hi; exit 2", "language": "bash"}, "Failed", {"stdout": "hi\n"}),
    (
        "pytest",
        {"code": "def test_a(): assert True", "language": "pytest", "run_timeout": 100},
        "Success",
        {"return_code": 0},
    ),
    (
        "loopback",
        {
            "code": "import socket; s = socket.create_server(('localhost', 8000));"
            "socket.create_connection(('localhost', 8000)); print('met')"
        },
        "Success",
        {"stdout": "met\n"},
    ),
]


@pytest.mark.parametrize(
    ("request_of", "status", "run"),
    [case[1:] for case in UPSTREAMS],
    ids=[case[0] for case in UPSTREAMS],
)
def test_upstreams_behaviours_by_its_sdk(
    url: str, request_of: dict[str, Any], status: str, run: dict[str, Any]
) -> None:
    fusion = sdk()
    asked = fusion.RunCodeRequest(**{"language": "python", **request_of})
    ran = fusion.run_code(asked, endpoint=url, max_attempts=1)
    assert ran.status.value == status, ran
    got = {name: getattr(ran.run_result, name) for name in run}
    assert {name: getattr(value, "value", value) for name, value in got.items()} == run


def test_upstreams_sdk_fetches_files_by_relative_and_absolute_name(url: str) -> None:
    fusion = sdk()
    code = "open('a', 'w').write('1'); open('/mnt/b', 'w').write('2')"
    asked = fusion.RunCodeRequest(code=code, language="python", fetch_files=["a", "/mnt/b", "no"])
    ran = fusion.run_code(asked, endpoint=url)
    assert ran.files == {"a": "MQ==", "/mnt/b": "Mg=="}


def test_two_programs_at_once_have_the_same_port_each(url: str) -> None:
    fusion = sdk()
    code = "import socket, time; socket.create_server(('127.0.0.1', 9000)); time.sleep(0.5)"
    asked = fusion.RunCodeRequest(code=code, language="python")
    many = [[asked, url]] * 4
    results = fusion.run_concurrent(fusion.run_code, args=many, concurrency=4)
    assert [ran.status for ran in results] == [fusion.RunStatus.Success] * 4


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
        response = CLIENT.post(
            f"{url}/run_code?faasInstanceName=one",  # as it was given, with what pins an instance
            headers=headers,
            content=json.dumps(payload),
            timeout=150,
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


def test_a_cell_that_raises_does_not_end_the_notebook_for_upstreams_sdk(url: str) -> None:
    fusion = sdk()
    cells = ["a = 1", "raise RuntimeError('no')", "print(a)"]
    ran = fusion.run_jupyter(fusion.RunJupyterRequest(cells=cells), endpoint=url)
    assert ran.status == fusion.RunStatus.Success
    assert (ran.cells[1].error[0]["ename"], ran.cells[2].stdout) == ("RuntimeError", "1\n")


def test_what_a_cell_has_drawn_comes_as_a_picture(url: str) -> None:
    """A stand-in for matplotlib, which draws one figure: what is asked of it is its public API."""
    figure = """
class Figure:
    def savefig(self, file, format, bbox_inches): file.write(b"drawn as " + format.encode())
    def __repr__(self): return "<Figure>"
"""
    drawing = """
from matplotlib.figure import Figure
figures = []
def plot(*_): figures.append(Figure())
def get_fignums(): return list(range(len(figures)))
def figure(number): return figures[number]
def close(which): figures.clear()
def show(): raise NotImplementedError
"""
    files = {
        "matplotlib/__init__.py": "",
        "matplotlib/figure.py": encoded(figure.encode()),
        "matplotlib/pyplot.py": encoded(drawing.encode()),
    }
    cells = [
        "import matplotlib.pyplot as plt; plt.plot(1); None",
        "1",
        "plt.Figure()",
        "plt.plot(1); plt.show(); display(2); plt.plot(3); None",
    ]
    fusion = sdk()
    asked = fusion.RunJupyterRequest(cells=cells, files=files)
    ran = fusion.run_jupyter(asked, endpoint=url)
    picture = {"text/plain": "<Figure>", "image/png": encoded(b"drawn as png")}
    assert [cell.display for cell in ran.cells] == [
        [picture], [{"text/plain": "1"}], [picture], [picture, {"text/plain": "2"}, picture],
    ]  # fmt: skip
