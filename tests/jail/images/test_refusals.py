"""What an image may not do to the machine that takes it in, and what a refusal leaves behind."""

import gzip
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from jail.images import ImageBroken, ImageTooLarge, ImageUnknown, StoreUnusable
from jail.images import archive as archives
from jail.images import unpack as unpacking
from jail.images.layers import _delete
from jail.images.store import ImageStore
from jail.images.stream import Measured
from jail.images.unpack import Owners
from tests.harness.commands import PENSTOCK
from tests.jail.images.archives import Layer, docker, layer, oci

MOST = 50_000_000


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", Owners(), MOST)


def left_in(store: ImageStore) -> list[str]:
    return [path.name for part in ("images", "layers", "unpacking")
            for path in (store.folder / part).iterdir()]  # fmt: skip


def sizes(**headers: str) -> bytes:
    return Layer().file("a", b"x", pax_headers=headers).bytes()


@pytest.mark.parametrize("size", ["-1", "-512", "-100000"])
def test_a_negative_size_is_refused_before_anything_is_read(store, tmp_path, size) -> None:
    with pytest.raises(ImageBroken, match=r"says a size of|entries overlap"):
        store.add(oci(tmp_path / "oci", [sizes(size=size)]))
    assert left_in(store) == []


def test_nothing_reads_a_layer_without_a_bound(tmp_path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    with (tmp_path / "f").open("rb") as file, pytest.raises(ImageBroken, match="a header of"):
        Measured(file, MOST).read(-1)


def test_a_header_that_never_ends_is_refused(store, tmp_path) -> None:
    marks = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1"}
    endless = b"999999999\n" + (b"0" * 500 + b"\n") * 25_000
    made = Layer().file("a", endless, pax_headers=marks).bytes()
    with pytest.raises(ImageBroken, match="a header of"):
        store.add(oci(tmp_path / "oci", [made]))
    (tmp_path / "outer.tar").write_bytes(Layer().file("a", endless * 3, pax_headers=marks).bytes())
    with pytest.raises(ImageBroken, match="the archive has a header of"):
        store.add(tmp_path / "outer.tar")


@pytest.mark.parametrize("value", ["x", "1,y"])
def test_a_header_that_says_no_number_is_damage(store, tmp_path, value) -> None:
    with pytest.raises(ImageBroken, match="is no readable tar"):
        store.add(oci(tmp_path / "oci", [sizes(**{"GNU.sparse.map": value})]))


@pytest.mark.parametrize(
    "about", [{"Env": ["A=\0"]}, {"User": "\ud800"}, {"WorkingDir": "/a\0b"}], ids=str
)
def test_settings_that_no_process_can_have_are_refused(store, tmp_path, about) -> None:
    with pytest.raises(ImageBroken, match="which no process can be given"):
        store.add(oci(tmp_path / "oci", [layer({"a": "1"})], **about))
    assert left_in(store) == []


def test_a_blob_that_is_a_pipe_is_not_waited_for(store, tmp_path) -> None:
    folder = oci(tmp_path / "oci", [layer({"a": "1"})])
    for blob in (folder / "blobs/sha256").iterdir():
        blob.unlink()
        os.mkfifo(blob)
    with pytest.raises(ImageBroken, match="which is no file in"):
        store.add(folder)


def test_hard_links_into_lower_layers_count_as_files_do(tmp_path) -> None:
    store = ImageStore(tmp_path / "store", Owners(), 1_000_000)
    top = Layer()
    for number in range(30):
        top.hard_link(f"copy{number}", "big")
    with pytest.raises(ImageTooLarge, match="hold more than 1,000,000 bytes"):
        store.add(oci(tmp_path / "oci", [layer({"big": "x" * 100_000}), top.bytes()]))
    assert left_in(store) == []


BELOW = Layer().folder("usr").file("usr/lib/f", b"x").link("lib", "usr/lib").bytes()


@pytest.mark.parametrize("target", ["lib/f", "usr/lib/f/x", "hidden/f"])
def test_a_hard_link_through_what_is_no_folder_below_is_refused(store, tmp_path, target) -> None:
    middle = Layer().file(".wh.hidden").bytes()
    low = layer({"hidden/f": "x"})
    top = Layer().hard_link("copy", target).bytes()
    with pytest.raises(ImageBroken, match="'copy' links to no file"):
        store.add(oci(tmp_path / "oci", [low, BELOW, middle, top]))
    assert left_in(store) == []


def test_the_layers_of_an_image_are_bounded_together(tmp_path) -> None:
    store = ImageStore(tmp_path / "store", Owners(), 1_000_000)
    layers = [layer({f"f{number}": str(number) * 400_000}) for number in range(3)]
    store.add(oci(tmp_path / "two", layers[:2], name="two"))
    with pytest.raises(ImageTooLarge, match="hold more than 1,000,000 bytes"):
        store.add(oci(tmp_path / "new", layers, name="new"))
    store.add(oci(tmp_path / "one", layers[2:], name="one"))
    with pytest.raises(ImageTooLarge, match="hold more than 1,000,000 bytes"):
        store.add(oci(tmp_path / "known", layers, name="known"))
    assert [image.name for image in store.images()] == ["one", "two"]
    assert len(os.listdir(store.folder / "layers")) == 3


DEEP = {
    "a file": (Layer().file("d/" * 300 + "f"), "folders deep"),
    "a link's target": (Layer().hard_link("l", "d/" * 300 + "f"), "folders deep"),
    "a long path": (Layer().file("d" * 200 + "/" + "/" * 5000 + "f"), "a path of more than"),
    "a long way out": (Layer().file("../" * 2_000_000), "a path of more than"),
    "a long symlink": (Layer().link("l", "x" * 5000), "a link of 5,000 bytes"),
    "an empty symlink": (Layer().link("l", ""), "a link of 0 bytes"),
}


@pytest.mark.parametrize("what", DEEP)
def test_paths_longer_or_deeper_than_real_ones_are_refused(store, tmp_path, what) -> None:
    made, message = DEEP[what]
    with pytest.raises(ImageBroken, match=message) as refused:
        store.add(oci(tmp_path / "oci", [made.bytes()]))
    assert len(str(refused.value)) < 200
    assert left_in(store) == []


def test_a_root_folder_deeper_than_real_ones_is_refused(store, tmp_path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    try:
        with pytest.raises(ImageBroken, match="more than 200 deep below") as refused:
            store.add(tmp_path / "d", "deep:1")
    finally:
        _delete(tmp_path / "d")  # pytest's own would go as deep
    assert len(str(refused.value)) < 200
    assert left_in(store) == []


def test_a_pipe_is_no_archive_and_not_waited_for(store, tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ImageBroken, match="is no file; write the archive to one first"):
        store.add(tmp_path / "pipe", "x")


def test_folders_that_the_tar_leaves_out_count_as_entries(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(unpacking, "MOST_ENTRIES", 100)
    made = Layer().file("a/" * 60 + "f").file("b/" * 60 + "f")
    with pytest.raises(ImageTooLarge, match="more than 100 entries and folders"):
        store.add(oci(tmp_path / "oci", [made.bytes()]))


def test_a_tree_of_any_depth_is_deleted(tmp_path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(3_000):
        os.mkdir("d" * 20, 0o700, dir_fd=at)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=at)
        os.symlink("/etc", "etc", dir_fd=inner)
        os.fchmod(inner, 0o500)
        os.close(at)
        at = inner
        os.fchmod(at, 0o700)
    os.close(at)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, files[0]), files[1]))
    try:
        _delete(top)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        left = top.exists()
        subprocess.run(["rm", "-rf", top], check=True)  # pytest itself cannot delete it
    assert not left


def test_a_compressed_archive_is_unpacked_up_to_a_bound(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "_BESIDES", 100_000)
    store = ImageStore(tmp_path / "store", Owners(), 1_000_000)
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(bytes(5_000_000)))
    with pytest.raises(ImageTooLarge, match=r"unpacks to more than 1,100,000 bytes.*gunzip"):
        store.add(tmp_path / "bomb.tar.gz")
    whole = bytearray(gzip.compress(os.urandom(100_000)))
    whole[10:200] = b"\xff" * 190
    (tmp_path / "torn.tar.gz").write_bytes(whole)
    with pytest.raises(ImageBroken, match="cannot be decompressed"):
        store.add(tmp_path / "torn.tar.gz")
    assert left_in(store) == []


def test_an_archive_of_countless_entries_is_refused(store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "_MOST_ENTRIES", 50)
    (tmp_path / "many.tar").write_bytes(layer({f"f{number}": "" for number in range(60)}))
    with pytest.raises(ImageBroken, match="more than 50 entries; no archive of images has"):
        store.add(tmp_path / "many.tar")


@pytest.mark.parametrize("sparse", ["manifest.json", "config", "layer"])
def test_a_file_of_an_archive_that_says_more_than_there_is_is_damage(
    store, tmp_path, sparse
) -> None:
    config = {"rootfs": {"diff_ids": ["sha256:" + "0" * 64]}}
    manifest = [{"Config": "config", "Layers": ["layer"], "RepoTags": ["a:1"]}]
    made, says = Layer(), {"GNU.sparse.map": "0,1000000", "GNU.sparse.size": "1000000"}
    for name, about in (("manifest.json", manifest), ("config", config), ("layer", "")):
        content = json.dumps(about).encode()
        made.file(name, content, pax_headers=says if name == sparse else {})
    (tmp_path / "x.tar").write_bytes(made.bytes())
    with pytest.raises(ImageBroken, match=r"x\.tar is damaged: unexpected end of data"):
        store.add(tmp_path / "x.tar")
    assert left_in(store) == []


@pytest.mark.parametrize("target", ["manifest.json", "nowhere"])
def test_a_link_in_an_archive_that_leads_to_no_file_is_refused(store, tmp_path, target) -> None:
    (tmp_path / "x.tar").write_bytes(Layer().link("manifest.json", target).bytes())
    with pytest.raises(ImageBroken, match="is not in"):
        store.add(tmp_path / "x.tar")


KILLED = """
import os, signal, sys
from pathlib import Path
from jail.images.store import ImageStore
from jail.images.unpack import Owners
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
ImageStore(Path(sys.argv[1]), Owners(), 10**9).add(Path(sys.argv[2]))
"""


def test_a_kill_before_an_image_has_its_name_leaves_a_store_that_works(store, tmp_path) -> None:
    source = oci(tmp_path / "oci", [layer({"a": "1"})])
    killed = subprocess.run([sys.executable, "-c", KILLED, str(store.folder), str(source)])
    assert killed.returncode == -9
    assert store.images() == []
    (store.folder / "unpacking/stray").write_text("of an older release")
    for path in (store.folder / "unpacking").iterdir():  # as if the kill had been a while ago
        os.utime(path, (0, 0))
    (store.folder / "unpacking/fresh").write_text("somebody writes it now")
    assert store.gc().layers == 1
    assert left_in(store) == ["fresh"]
    assert [image.name for image in store.add(source)] == ["task"]


def test_a_layer_that_is_missing_for_good_is_said_with_its_remedy(store, tmp_path) -> None:
    source = oci(tmp_path / "oci", [layer({"a": "1"})])
    (image,) = store.add(source)
    _delete(store.folder / "layers" / image.layers[0])
    with (
        pytest.raises(StoreUnusable, match="Add it again: penstock images add FILE --name task"),
        store.use("task"),
    ):
        pass
    store.add(source)
    with store.use("task") as (_, (folder,)):
        assert (folder / "a").read_text() == "1"


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", '{"version": 1}', '{"version": 1, "config": 5}', "[" * 100_000]
)
def test_a_damaged_record_is_said_with_its_remedy(store, tmp_path, text) -> None:
    source = oci(tmp_path / "oci", [layer({"a": "1"})])
    (image,) = store.add(source)
    record = store.folder / "images/task.json"
    record.write_text(text)
    remedy = re.escape(f"{record} is damaged; delete this file, and add its image again")
    for asked in (store.images, store.gc, lambda: store.find("task")):
        with pytest.raises(StoreUnusable, match=remedy):
            asked()
    assert (store.folder / "layers" / image.layers[0]).is_dir()  # whose it is nobody knows
    record.unlink()
    assert store.add(source)[0].layers == image.layers


def test_a_refused_image_leaves_none_of_its_layers_and_all_of_others(store, tmp_path) -> None:
    shared, bad = layer({"a": "1"}), Layer().file("../out").bytes()
    store.add(oci(tmp_path / "good", [shared], name="good"))
    before = left_in(store)
    with pytest.raises(ImageBroken):
        store.add(oci(tmp_path / "oci", [shared, layer({"b": "2"}), bad]))
    assert left_in(store) == before
    saved = docker(tmp_path / "saved.tar", {"t:1": [layer({"c": "3"})], "t:2": [bad]})
    with pytest.raises(ImageBroken):
        store.add(saved)
    assert left_in(store) == before


ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=4m none "$1"
"$2" images add "$3" || code=$?
find "$1" -mindepth 2 | sed "s|$1/||"
"$2" images ls
exit ${code:-0}
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts a small disk")
def test_a_full_disk_is_said_and_nothing_stays_on_it(tmp_path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    layers = [layer({"small": "x"}), Layer().file("large", os.urandom(8 << 20)).bytes()]
    image = oci(tmp_path / "oci", layers, packed=bytes)
    words = ["unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", folder, PENSTOCK, image]
    ran = subprocess.run(
        words, env={**os.environ, "PENSTOCK_IMAGES": str(folder)}, capture_output=True, text=True
    )
    assert ran.returncode == 1, ran
    assert f"{folder} is full; nothing was added" in ran.stderr
    assert f"no image is in {folder}" in ran.stderr
    assert ran.stdout == ""


def test_images_may_be_removed_while_they_are_listed(store, tmp_path) -> None:
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    (record,) = (store.folder / "images").iterdir()
    record.with_name("gone.json").symlink_to("nowhere")  # listed, and not there when it is read
    assert [image.name for image in store.images()] == ["task"]
    assert store.gc().layers == 0
    with pytest.raises(ImageUnknown, match="known are: task"):
        store.find("other")
