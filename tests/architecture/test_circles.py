"""Imports make no circle: type-only imports and imports inside functions included."""

from pathlib import Path

import pytest

from tests.architecture.source import modules
from tests.architecture.tree import arrows_within, circles, imports_of


def test_no_modules_import_each_other() -> None:
    graph = imports_of(modules())
    assert circles(graph) == []


def test_no_folders_import_each_other() -> None:
    """At each level: what lies beside each other in a folder, files and folders alike."""
    graph = imports_of(modules())
    parents = {name.rpartition(".")[0] for name in graph} | {""}
    found = {parent: circles(arrows_within(parent, graph)) for parent in parents}
    assert {parent: rounds for parent, rounds in found.items() if rounds} == {}


def test_a_circle_of_folders_is_seen() -> None:
    graph = {"a.b.x": {"a.c"}, "a.b.y": set(), "a.c": {"a.b.y"}, "d": {"a.c"}}
    assert circles(arrows_within("a", graph)) == [["b", "c"]]
    assert circles(arrows_within("", graph)) == []


def test_a_circle_is_seen_however_it_is_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tests.architecture import source, tree

    monkeypatch.setattr(source, "ROOT", tmp_path)
    monkeypatch.setattr(tree, "ROOT", tmp_path)
    folder = tmp_path / "ground"
    folder.mkdir()
    (folder / "one.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ground.two import Two\n"
    )
    (folder / "two.py").write_text("def f():\n    from ground import three\n")
    (folder / "three.py").write_text("from . import one\n")
    graph = imports_of(sorted(folder.glob("*.py")))
    assert circles(graph) == [["ground.one", "ground.three", "ground.two"]]


def test_worker_takes_of_limiter_only_the_package_and_its_commands() -> None:
    wrong = [
        (module, imported)
        for module, all_of_them in imports_of(modules("worker", "limiter")).items()
        for imported in all_of_them
        if module.startswith("worker") and imported.startswith("limiter.")
    ]
    assert {imported for _, imported in wrong} <= {"limiter.commands"}, wrong
