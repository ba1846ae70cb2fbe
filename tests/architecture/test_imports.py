"""Imports run one way: ground <- limiter <- worker, ground <- buffer, all <- penstock."""

import pytest

from tests.architecture.source import PACKAGES, ROOT, imported, modules, name_of
from tests.architecture.tree import imports_of

MAY_IMPORT = {
    "ground": {"ground"},
    "limiter": {"ground", "limiter"},
    "buffer": {"ground", "buffer"},
    "worker": {"ground", "limiter", "worker"},
    "penstock": {"ground", "limiter", "buffer", "worker", "penstock"},
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
