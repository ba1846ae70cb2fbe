"""What is installed is what is in the tree, and it works from another folder."""

import json
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.harness.wheel import built

ROOT = Path(__file__).parents[2]
PACKAGES = ("ground", "limiter", "buffer", "gateway", "jail", "worker", "penstock")


def in_the_tree() -> set[str]:
    files = (file for package in PACKAGES for file in (ROOT / package).rglob("*"))
    return {
        file.relative_to(ROOT).as_posix()
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel; dependencies are borrowed from ours."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check",
         "install", "--no-deps", "--no-index", "--quiet", wheel],
        check=True,
        capture_output=True,
        timeout=100,
    )  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    # A path added so is searched last, and .pth files in it (our editable install) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


def test_the_wheel_holds_every_file_of_every_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == in_the_tree()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_an_installed_doctor_finds_its_own_packages(installed: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [installed / "penstock", "doctor", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    facts = {one["about"]: one["fact"] for one in json.loads(result.stdout)["findings"]}
    assert f"Penstock's, from {installed.parent}" in facts["package names"]


def test_the_doctor_still_speaks_when_another_project_wrote_over_the_package(
    installed: Path, tmp_path: Path
) -> None:
    """As `pip install penstock`, which is somebody else's, does to `penstock/__init__.py`."""
    (site,) = installed.parent.glob("lib/python*/site-packages")
    ours = (site / "penstock" / "__init__.py").read_text()
    others = site / "penstock-0.1.0.dist-info"
    others.mkdir()
    (others / "METADATA").write_text("Metadata-Version: 2.1\nName: penstock\nVersion: 0.1.0\n")
    (others / "RECORD").write_text("penstock/__init__.py,,\n")
    (site / "penstock" / "__init__.py").write_text('"""Flow tracing."""\n')
    try:
        result = subprocess.run(
            [installed / "penstock", "doctor"],
            cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    finally:
        (site / "penstock" / "__init__.py").write_text(ours)
        shutil.rmtree(others)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "also installed by penstock, another project (Penstock is penstock-rl)" in result.stdout


def test_the_benchmarks_stay_with_the_source(installed: Path, tmp_path: Path) -> None:
    command = [installed / "penstock", "bench", "gates"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("penstock: the benchmarks are not part of the package; clone")


def test_every_script_loads_from_another_folder(installed: Path, tmp_path: Path) -> None:
    scripts = [
        (".".join(Path(name).parts[:-2]), Path(name).stem)
        for name in sorted(in_the_tree())
        if name.endswith(".lua") and "-- KEYS" in (ROOT / name).read_text()
    ]
    program = (
        "import json, sys, ground\n"
        "from ground.lua import load_script\n"
        "for package, name in json.loads(sys.argv[1]):\n"
        "    assert load_script(package, name).keys\n"
        "assert ground.__file__.startswith(sys.prefix), ground.__file__\n"
    )
    result = subprocess.run(
        [installed / "python", "-c", program, json.dumps(scripts)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
