"""`penstock images`, as one types it."""

import json
import os
import time
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from penstock.cli import command
from tests.jail.images.archives import docker, layer


@pytest.fixture
def penstock(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_IMAGES", str(tmp_path / "store"))

    def run(*words):
        with patch.dict(os.environ):  # where a command keeps its options
            return CliRunner().invoke(command, ["images", *words])

    return run


def test_an_image_is_added_listed_used_removed_and_collected(penstock, tmp_path):
    base, top = layer({"etc/os": "x" * 1_500_000}), layer({"task": "y"})
    saved = docker(tmp_path / "saved.tar", {"task:1": [base, top], "task:2": [base]})
    added = penstock("add", str(saved))
    assert added.exit_code == 0
    assert added.stdout.splitlines() == ["task:1: 2 layers, 1.5 MB", "task:2: 1 layer, 1.5 MB"]
    store = ImageStore.of(ImageSettings(images=tmp_path / "store"), 65534)
    with store.use("task:1"):
        shown = [line.split() for line in penstock("ls").stdout.splitlines()]
        assert shown[1][:4] == ["task:1", "2", "1.5", "MB"]
        assert shown[1][-1] == "yes"
        assert [image["in_use"] for image in json.loads(penstock("ls", "--json").stdout)] == [
            True, True,
        ]  # fmt: skip
        assert penstock("rm", "task:1", "task:2").stdout == "task:1: removed\ntask:2: removed\n"
        assert "0 layers deleted, 0.0 MB freed; 2 more are in use" in penstock("gc").stdout
    assert penstock("gc").stdout == "2 layers deleted, 1.5 MB freed\n"
    assert "no image is in" in penstock("ls").stderr


def test_an_old_image_says_its_age_in_days(penstock, tmp_path):
    penstock("add", str(docker(tmp_path / "saved.tar", {"old": [layer({"a": "1"})]})))
    (record,) = (tmp_path / "store/images").iterdir()
    about = json.loads(record.read_text())
    record.write_text(json.dumps(about | {"added": time.time() - 3 * 86_400}))
    assert "3 d" in penstock("ls").stdout


def test_a_refused_image_is_one_sentence_and_exit_code_1(penstock, tmp_path):
    for words, sentence in (
        (("add", str(tmp_path / "nowhere")), "there is no"),
        (("rm", "nothing"), "image 'nothing' does not exist in"),
    ):
        refused = penstock(*words)
        assert (refused.exit_code, refused.stdout) == (1, "")
        (line,) = refused.stderr.splitlines()
        assert line.startswith("penstock: ")
        assert sentence in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written_names_its_setting(penstock, tmp_path):
    (tmp_path / "store").mkdir(mode=0o500)
    refused = penstock("add", str(docker(tmp_path / "s.tar", {"a": [layer({"a": "1"})]})))
    assert "PENSTOCK_IMAGES" in refused.stderr
