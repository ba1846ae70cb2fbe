"""RQ's own tests, with our worker in place of its `Worker`: run by `make conformance`.

What fails is listed in docs/reference/rq.md, each with its reason; all else passes.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.harness.nursery import ROOT
from tests.harness.servers import PrivateRedis

SOURCE = os.environ.get("RQ_SOURCE", "")

pytestmark = [
    pytest.mark.skipif(not SOURCE, reason="RQ_SOURCE names no source package of RQ"),
    pytest.mark.timeout(1800),
]
LISTED = re.compile(r"^\| `(test_\w+\.py::\w+::\w+)` \|", re.MULTILINE)


def the_tests(folder: Path, port: int) -> Path:
    """A copy of them, for a server at that port."""
    shutil.copytree(Path(SOURCE) / "tests", folder / "tests")
    for file in (folder / "tests").rglob("*.py"):
        file.write_text(file.read_text().replace("127.0.0.1:6379", f"127.0.0.1:{port}"))
    (folder / "sitecustomize.py").write_text("import rq_suite\n")  # Python loads it at its start
    return folder


def failed(report: Path) -> tuple[set[str], int]:
    """Which tests failed, and how many ran."""
    found, ran = set(), 0
    for case in ElementTree.parse(report).iter("testcase"):
        module, _, group = case.get("classname", "").rpartition(".")
        ran += case.find("skipped") is None
        if case.find("failure") is not None or case.find("error") is not None:
            found.add(f"{module.removeprefix('tests.')}.py::{group}::{case.get('name')}")
    return found, ran


def test_what_fails_of_rqs_own_tests_is_what_the_page_on_rq_lists(tmp_path: Path) -> None:
    with PrivateRedis(tmp_path / "redis", aof=False) as server:
        _, port = server.target.nodes[0]
        folder = the_tests(tmp_path, port)
        environment: dict[str, Any] = {
            **{name: value for name, value in os.environ.items() if "PENSTOCK" not in name},
            "RQ_SUITE_PORT": str(port),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{folder}:{ROOT}:{Path(__file__).parent}",
        }
        said = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio",
             "-n", "1",  # a test that kills the process, for RQ a horse's, is one failure
             "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, "--timeout", "120",
             "--tb", "short", "--junit-xml", tmp_path / "report.xml", "tests"],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    found, ran = failed(tmp_path / "report.xml")
    assert ran > 700, said.stdout[-2000:]
    listed = set(LISTED.findall((ROOT / "docs/reference/rq.md").read_text()))
    assert found == listed, said.stdout[-20_000:]
