"""Imports run one way: ground <- limiter, buffer, jail <- worker (less buffer) <- penstock.

The gateway stands beside the worker, on limiter and buffer.
"""

import ast
import subprocess
import sys

import pytest

from tests.architecture.source import PACKAGES, ROOT, imported, modules, name_of
from tests.architecture.tree import imports_of, module_of

MAY_IMPORT = {
    "ground": {"ground"},
    "limiter": {"ground", "limiter"},
    "buffer": {"ground", "buffer"},
    "gateway": {"ground", "limiter", "buffer", "gateway"},
    "jail": {"ground", "jail"},
    "worker": {"ground", "limiter", "jail", "worker"},
    "penstock": {"ground", "limiter", "buffer", "gateway", "jail", "worker", "penstock"},
}
NEVER = {"tests", "bench", "examples", "docs"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_what_it_stands_on(package: str) -> None:
    wrong = [
        f"{name_of(file)}:{line} imports {module}"
        for file in modules(package)
        for module, line in imported(file)
        if (top := module.split(".")[0]) in {*PACKAGES, *NEVER} and top not in MAY_IMPORT[package]
    ]
    assert wrong == []


def test_the_jail_is_started_without_redis() -> None:
    """Each of its modules, in a process of its own: what they import brings nothing of jobs."""
    names = sorted(module_of(file) for file in modules("jail") if "inside" not in file.parts)
    program = (
        "import importlib, sys\n"
        f"for name in {names}: importlib.import_module(name)\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(ast.literal_eval(ran.stdout))
    assert "jail" in loaded
    assert loaded & {"redis", "rq", "limiter", "buffer", "worker", "penstock"} == set()


def test_a_buffer_server_imports_no_http_client() -> None:
    """Its generators alone need one, and it is a tenth of what the server keeps in memory."""
    program = "import sys, buffer.http.app; print('httpx' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "False\n"


def test_what_tests_share_is_in_no_file_of_tests() -> None:
    files = imports_of((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100, "the tests are not where they are looked for"
    wrong = {
        name: tests
        for name, imported in files.items()
        if (tests := {module for module in imported if ".test_" in module})
    }
    assert wrong == {}


def test_an_import_inside_a_function_is_seen(tmp_path, monkeypatch) -> None:
    from tests.architecture import source

    monkeypatch.setattr(source, "ROOT", tmp_path)
    file = tmp_path / "ground" / "late.py"
    file.parent.mkdir()
    file.write_text(
        "def f():\n    from worker import jobs\n    from . import keys\n"
        "    import_module('buffer.store')\n"
    )
    assert list(source.imported(file)) == [("worker", 2), ("ground", 3), ("buffer.store", 4)]
