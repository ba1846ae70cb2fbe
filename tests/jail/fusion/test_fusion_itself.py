"""Sandbox Fusion's own tests against this sandbox: `make conformance FUSION_SOURCES=…`.

They are the runners' and the data sets' of its repository, run as they are in an environment of
their own; see `fusion_plugin.py` for how their programs come here.
"""

import os
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..serving import served

SOURCES = os.environ.get("FUSION_SOURCES", "")
PYTHON = os.environ.get("FUSION_PYTHON", "")
# What fails on purpose, with its reason; docs/reference/sandbox-fusion.md lists the differences.
DIFFERENT = {
    "test_isolation_network_external_access": "programs have no network beyond loopback",
}
CONFIGURATION = "sandbox/configs/ci.yaml"

pytestmark = [
    pytest.mark.skipif(not (SOURCES and PYTHON), reason="make conformance FUSION_SOURCES=…"),
    pytest.mark.timeout(3600),
]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[str]:
    """With the packages that are in Sandbox Fusion's environment."""
    yield from served(
        memory="2048", PENSTOCK_SANDBOX_PYTHON=PYTHON, PENSTOCK_SANDBOX_PROCESSES="256"
    )


@pytest.mark.parametrize("part", ["runners", "datasets"])
def test_it_passes_upstreams_own_tests_but_for_what_is_listed(
    sandbox: str, part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configuration = (Path(SOURCES) / CONFIGURATION).read_text()
    (tmp_path / "ours.yaml").write_text(configuration.replace("isolation: lite", "isolation: none"))
    results = tmp_path / "results.xml"
    options = [
        "-p", "fusion_plugin", "-p", "no:logging", "-p", "no:cacheprovider", "-n", "2", "-rs",
        "-o", "addopts=", "-o", "asyncio_mode=auto", "--tb=short", f"--junitxml={results}",
        "--ignore=sandbox/tests/runners/samples", f"sandbox/tests/{part}",
    ]  # fmt: skip
    surroundings = {
        "FUSION_URL": sandbox,
        "SANDBOX_CONFIG": str(tmp_path / "ours"),
        "PYTHONPATH": os.pathsep.join([SOURCES, str(Path(__file__).parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", *options],
        cwd=SOURCES,
        env={**os.environ, **surroundings},
        text=True,
        capture_output=True,
    )
    assert results.exists(), ran.stdout + ran.stderr
    failed, passed = set(), set()
    for case in ElementTree.parse(results).iter("testcase"):
        name = case.get("name", "")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.add(name)
        elif case.find("skipped") is None:
            passed.add(name)
    with capsys.disabled():
        print(f"\nSandbox Fusion's {part}: {len(passed)} passed, {ran.stdout[-12000:]}")
    assert failed - set(DIFFERENT) == set(), ran.stdout
    assert passed & set(DIFFERENT) == set(), "these pass by now: strike them from the list"
    assert len(passed) > 20
