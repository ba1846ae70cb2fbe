"""Images: what an archive says is what a session will see, each layer unpacked once."""

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
import uuid
from functools import partial
from pathlib import Path

import pytest
import zstandard

from jail.images import ImageBroken, ImageError, ImageTooLarge, ImageUnknown
from jail.images.archive import ImageConfig
from jail.images.store import BUILD, MOST_LAYERS, ImageStore
from jail.images.unpack import OPAQUE, Owners
from tests.harness.servers import until
from tests.jail.images.archives import Layer, config, digest, docker, layer, oci

MOST = 50_000_000


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "store", Owners(), MOST)


def tree(root: Path) -> dict[str, str]:
    """What is below: a file's content, a link's target, or what else it is."""
    found = {}
    for path in sorted(root.rglob("*")):
        about = path.lstat()
        name = path.relative_to(root).as_posix()
        if stat.S_ISLNK(about.st_mode):
            found[name] = f"-> {path.readlink()}"
        elif stat.S_ISREG(about.st_mode):
            found[name] = path.read_text()
        elif stat.S_ISDIR(about.st_mode):
            found[name] = "opaque" if OPAQUE in os.listxattr(path) else "folder"
        elif stat.S_ISCHR(about.st_mode) and about.st_rdev == 0:
            found[name] = "whiteout"
        else:
            found[name] = "pipe" if stat.S_ISFIFO(about.st_mode) else "other"
    return found


def trees(store: ImageStore, name: str) -> list[dict[str, str]]:
    """The layers of an image, the highest first."""
    with store.use(name) as (_, folders):
        return [tree(folder) for folder in folders]


def layers_of(store: ImageStore) -> list[str]:
    return sorted(os.listdir(store.folder / "layers"))


@pytest.mark.parametrize(
    "packed", [bytes, gzip.compress, zstandard.compress], ids=["plain", "gzip", "zstd"]
)
def test_an_oci_layout_is_unpacked_whatever_packs_its_layers(store, tmp_path, packed) -> None:
    layers = [layer({"etc/os": "debian"}), layer({"task/test.py": "assert 1"})]
    source = oci(
        tmp_path / "oci", layers, packed=packed,
        Env=["PATH=/bin", "A=1"], User="agent", WorkingDir="/task", Cmd=["bash"],
    )  # fmt: skip
    (image,) = store.add(source)
    assert (image.name, image.bytes) == ("task", 14)
    assert image.config.env == ("PATH=/bin", "A=1")
    assert (image.config.user, image.config.workdir) == ("agent", "/task")
    assert image.config.cmd == ("bash",)
    assert trees(store, "task") == [
        {"task": "folder", "task/test.py": "assert 1"},
        {"etc": "folder", "etc/os": "debian"},
    ]


def test_a_folder_that_was_there_is_closed_to_others(store, tmp_path) -> None:
    store.folder.mkdir(mode=0o755)
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_working_folder_begins_at_the_root(store, tmp_path) -> None:
    (image,) = store.add(oci(tmp_path / "oci", [layer({"a": "1"})], WorkingDir="task/sub"))
    assert image.config.workdir == "/task/sub"


def test_a_docker_save_shares_layers_among_its_images(store, tmp_path) -> None:
    base, one, two = layer({"a": "base"}), layer({"b": "one"}), layer({"b": "two"})
    source = docker(tmp_path / "saved.tar", {"t:1": [base, one], "t:2": [base, two]})
    assert [image.name for image in store.add(source)] == ["t:1", "t:2"]
    assert len(layers_of(store)) == 3
    assert trees(store, "t:1")[0] == {"b": "one"}
    assert trees(store, "t:2") == [{"b": "two"}, {"a": "base"}]


def test_a_layer_is_the_same_from_either_form_and_unpacked_once(store, tmp_path) -> None:
    layers = [layer({"a": "1"})]
    store.add(oci(tmp_path / "oci", layers))
    before = (store.folder / "layers" / layers_of(store)[0] / "root").stat().st_ino
    packed = docker(tmp_path / "saved.tar", {"other": layers})
    zipped = tmp_path / "saved.tar.gz"
    zipped.write_bytes(gzip.compress(packed.read_bytes()))
    store.add(zipped)
    (key,) = layers_of(store)
    assert (store.folder / "layers" / key / "root").stat().st_ino == before
    assert [image.name for image in store.images()] == ["other", "task"]


def test_a_plain_root_folder_becomes_an_image_of_one_layer(store, tmp_path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin/tool").write_text("#!/bin/sh")
    (root / "bin/tool").chmod(0o755)
    (root / "sh").symlink_to("/bin/tool")
    for _ in range(2):
        store.add(root, "plain")
    assert len(layers_of(store)) == 1
    assert trees(store, "plain") == [
        {"bin": "folder", "bin/tool": "#!/bin/sh", "sh": "-> /bin/tool"}
    ]
    with store.use("plain") as (_, (folder,)):
        assert (folder / "bin/tool").stat().st_mode & 0o777 == 0o755


def test_whiteouts_hide_what_is_below_and_nothing_of_their_own_layer(store, tmp_path) -> None:
    top = Layer().file("etc/.wh.gone").file("etc/.wh.back").file("etc/back", b"new")
    top.folder("var/cache").file("var/cache/.wh..wh..opq").file("var/cache/mine", b"m")
    top.file(".wh.opt").folder("opt").file("opt/new", b"n").file(".wh..wh.plnk")
    below = layer({"etc/gone": "g", "etc/back": "old", "var/cache/old": "o", "opt/old": "o"})
    store.add(oci(tmp_path / "oci", [below, top.bytes()]))
    assert trees(store, "task")[0] == {
        "etc": "folder", "etc/gone": "whiteout", "etc/back": "new",
        "var": "folder", "var/cache": "opaque", "var/cache/mine": "m",
        "opt": "opaque", "opt/new": "n",
    }  # fmt: skip


def test_a_hard_link_into_a_lower_layer_brings_its_content(store, tmp_path) -> None:
    lowers = [layer({"a": "first"}), layer({"a": "second"})]
    top = Layer().hard_link("b", "./a").file("c", b"own").hard_link("d", "c").bytes()
    for number, lower in enumerate(lowers):
        store.add(oci(tmp_path / f"oci{number}", [lower, top], name=f"t{number}"))
    assert trees(store, "t0")[0] == {"b": "first", "c": "own", "d": "own"}
    assert trees(store, "t1")[0] == {"b": "second", "c": "own", "d": "own"}
    store.add(oci(tmp_path / "again", [lowers[0], top], name="t2"))
    assert len(layers_of(store)) == 4
    with pytest.raises(ImageBroken, match=r"links to '\./a', which no layer below has"):
        store.add(oci(tmp_path / "alone", [top], name="t3"))


def test_modes_times_and_pipes_are_kept_and_setuid_is_not(store, tmp_path) -> None:
    made = Layer().folder("locked", mode=0o555, mtime=1_000_000).file("locked/f", b"x", mtime=7.0)
    made.file("su", b"x", mode=0o6755).folder("tmp", mode=0o1777).entry("p", b"6")
    store.add(oci(tmp_path / "oci", [made.bytes()]))
    with store.use("task") as (_, (folder,)):
        assert (folder / "su").stat().st_mode & 0o7777 == 0o755
        assert (folder / "tmp").stat().st_mode & 0o7777 == 0o1777
        assert (folder / "locked").stat().st_mode & 0o777 == 0o555
        assert (folder / "locked").stat().st_mtime == 1_000_000
        assert (folder / "locked/f").stat().st_mtime == 7
        assert tree(folder)["p"] == "pipe"
    store.remove("task")
    assert store.gc().layers == 1
    assert layers_of(store) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize(
    ("owners", "expected"), [(Owners(one=65534), 65534), (Owners(first=300_000), 301_000)]
)
def test_root_gives_files_to_the_users_that_sessions_run_as(tmp_path, owners, expected) -> None:
    store = ImageStore(tmp_path / "store", owners, MOST)
    made = Layer().file("f", uid=1000, gid=1000).folder("d", uid=1000, gid=1000)
    store.add(oci(tmp_path / "oci", [made.entry("l", b"2", linkname="f", uid=1000).bytes()]))
    with store.use("task") as (_, (folder,)):
        assert {path.lstat().st_uid for path in folder.iterdir()} == {expected}


HOSTILE = {
    "a parent": (Layer().file("../out"), "leads out of the image"),
    "a parent in the midst": (Layer().file("a/../../out"), "leads out of the image"),
    "a file below a link": (Layer().link("a", "/tmp").file("a/out"), "'a', which is no folder"),
    "a folder below a link": (
        Layer().link("a", "/tmp").folder("a/b/c"), "'a', which is no folder",
    ),
    "a whiteout below a link": (
        Layer().link("a", "/tmp").file("a/.wh.x"), "'a', which is no folder",
    ),
    "a hard link out": (Layer().hard_link("a", "../../etc/passwd"), "leads out of the image"),
    "a hard link through a link": (
        Layer().link("a", "/etc").hard_link("b", "a/passwd"), "links to no file",
    ),
    "a device": (Layer().entry("null", b"3", devmajor=1, devminor=3), "is a device"),
    "a disk": (Layer().entry("sda", b"4", devmajor=8), "is a device"),
    "a crafted whiteout": (Layer().entry("x", b"3"), "is a device"),
    "a whiteout of a parent": (Layer().file("a/.wh..."), "hides no file"),
    "a whiteout of itself": (Layer().file("a/.wh.."), "hides no file"),
    "an empty whiteout": (Layer().file("a/.wh."), "hides no file"),
    "a long name": (Layer().file("n" * 300), "a name that no file can have"),
    "a folder that is a file": (Layer().folder("a").file("a"), "is a folder and a file"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_layer_is_refused_and_leaves_nothing(store, tmp_path, what) -> None:
    made, message = HOSTILE[what]
    before = Path("/etc").lstat().st_mtime_ns
    source = oci(tmp_path / "oci", [made.bytes()])
    with pytest.raises(ImageBroken, match=message):
        store.add(source)
    assert store.images() == []
    assert layers_of(store) == []
    assert os.listdir(store.folder / "unpacking") == []
    assert not (tmp_path / "out").exists()
    assert Path("/etc").lstat().st_mtime_ns == before


@pytest.mark.parametrize("mtime", ["nan", "inf", "1e300"])
def test_a_time_that_no_file_can_have_is_left_out(store, tmp_path, mtime) -> None:
    made = Layer().folder("d", pax_headers={"mtime": mtime})
    made.file("d/f", b"x", pax_headers={"mtime": mtime})
    store.add(oci(tmp_path / "oci", [made.bytes()]))
    assert trees(store, "task") == [{"d": "folder", "d/f": "x"}]


def test_attributes_of_overlayfs_do_not_come_in_by_a_header(store, tmp_path) -> None:
    made = Layer().folder("d", pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"})
    made.file("cap", pax_headers={"SCHILY.xattr.security.capability": "x"})
    store.add(oci(tmp_path / "oci", [made.bytes()]))
    with store.use("task") as (_, (folder,)):
        assert os.listxattr(folder / "d") == os.listxattr(folder / "cap") == []


def test_bombs_are_refused_before_they_fill_the_disk(tmp_path) -> None:
    store = ImageStore(tmp_path / "store", Owners(), 1_000_000)
    zeros = layer({"big": "0" * 3_000_000})
    with pytest.raises(ImageTooLarge, match="PENSTOCK_IMAGE_MAX_GB"):
        store.add(oci(tmp_path / "oci", [zeros]))
    header = Layer()
    member = header.tar.gettarinfo(__file__, "x")
    member.type, member.size = b"x", 9 << 20  # an extended header of 9 MB
    text = member.tobuf(format=0) + bytes(9 << 20)
    with pytest.raises(ImageBroken, match="a header of"):
        store.add(oci(tmp_path / "header", [text]))
    assert layers_of(store) == os.listdir(store.folder / "unpacking") == []


def test_damage_is_named(store, tmp_path) -> None:
    good = layer({"a": "x" * 2000, "b": "y"})

    def blob_of(folder: Path, content: bytes) -> Path:
        return folder / "blobs" / digest(content).replace(":", "/")

    flipped = oci(tmp_path / "flipped", [good], packed=bytes)
    blob_of(flipped, good).write_bytes(good.replace(b"x" * 10, b"z" * 10, 1))
    with pytest.raises(ImageBroken, match="it is damaged"):
        store.add(flipped)
    short = oci(tmp_path / "short", [good], packed=bytes)
    blob_of(short, good).write_bytes(good[:1500])
    with pytest.raises(ImageBroken, match="ends in the middle of 'a'"):
        store.add(short)
    for pack in (gzip.compress, zstandard.compress):
        packed = pack(good)[:-9]
        cut = oci(tmp_path / pack.__module__, [good], packed=lambda _, packed=packed: packed)
        with pytest.raises(ImageBroken, match=r"cannot be decompressed|is no readable tar"):
            store.add(cut)
    midst = good[:2560] + b"\xff" * 512 + bytes(1024)
    with pytest.raises(ImageBroken, match="no readable entry at byte 2,560"):
        store.add(oci(tmp_path / "midst", [midst]))
    absent = oci(tmp_path / "absent", [good], packed=bytes)
    blob_of(absent, good).unlink()
    with pytest.raises(ImageBroken, match="is no file in"):
        store.add(absent)
    assert layers_of(store) == []


def test_an_archive_that_is_none_is_refused_with_what_would_be_one(store, tmp_path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    with pytest.raises(ImageBroken, match=r"notes\.txt is no tar"):
        store.add(text)
    (tmp_path / "root.tar").write_bytes(layer({"etc/os": "x"}))
    with pytest.raises(ImageBroken, match="must be unpacked first"):
        store.add(tmp_path / "root.tar")
    with pytest.raises(ImageBroken, match="there is no"):
        store.add(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageBroken, match="is empty"):
        store.add(tmp_path / "empty", "e")
    leads = Layer()
    names = [{"Config": "../../etc/hostname", "RepoTags": ["x"], "Layers": []}]
    (tmp_path / "leads.tar").write_bytes(
        leads.file("manifest.json", json.dumps(names).encode()).bytes()
    )
    with pytest.raises(ImageBroken, match="leads out of the archive"):
        store.add(tmp_path / "leads.tar")


def test_an_image_for_another_machine_is_refused(store, tmp_path) -> None:
    one = layer({"a": "1"})
    made = Layer().file("l", one)
    about = config([one]) | {"architecture": "s390x"}
    made.file("c.json", json.dumps(about).encode())
    manifest = [{"Config": "c.json", "RepoTags": ["x"], "Layers": ["l"]}]
    (tmp_path / "x.tar").write_bytes(
        made.file("manifest.json", json.dumps(manifest).encode()).bytes()
    )
    with pytest.raises(ImageBroken, match="the image is for s390x; this machine is"):
        store.add(tmp_path / "x.tar")


def test_a_name_is_refused_that_is_too_long_for_its_record_and_no_other(store, tmp_path) -> None:
    source = oci(tmp_path / "oci", [layer({"a": "1"})])
    longest = "a" * 96 + "/" * 48
    store.add(source, longest)
    assert store.find(longest).name == longest
    for ask in (partial(store.add, source), store.find):
        with pytest.raises(ImageError, match="if each of /:@\\+ counts as three"):
            ask("a" * 60 + "/" * 100)
    with pytest.raises(ImageUnknown):
        store.find("b" * 96 + "/" * 48)


def test_names_are_asked_for_and_checked(store, tmp_path) -> None:
    nameless = oci(tmp_path / "oci", [layer({"a": "1"})], name="")
    with pytest.raises(ImageError, match="give one: --name NAME"):
        store.add(nameless)
    with pytest.raises(ImageError, match="is no image name"):
        store.add(nameless, "../x")
    store.add(nameless, "python:latest")
    assert store.find("python").name == "python:latest"
    with pytest.raises(
        ImageUnknown, match=r"'rust' does not exist in .*; known are: python:latest"
    ):
        store.find("rust")
    two = docker(tmp_path / "two.tar", {"a": [layer({"a": "1"})], "b": [layer({"b": "1"})]})
    with pytest.raises(ImageError, match="holds 2 images"):
        store.add(two, "one-name")


def test_layers_in_use_outlive_their_image(store, tmp_path) -> None:
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    with store.use("task") as (image, (folder,)):
        assert store.in_use(image)
        store.remove("task")
        done = store.gc()
        assert (done.layers, done.in_use) == (0, 1)
        assert tree(folder) == {"a": "1"}
    assert store.gc().layers == 1
    with pytest.raises(ImageUnknown), store.use("task"):
        pass


ADD = """
import sys
from pathlib import Path
from jail.images.store import ImageStore
from jail.images.unpack import Owners
ImageStore(Path(sys.argv[1]), Owners(), 10**9).add(Path(sys.argv[2]))
"""


def test_a_kill_while_unpacking_leaves_no_half_of_an_image(store, tmp_path) -> None:
    store.add(oci(tmp_path / "first", [layer({"a": "1"})], name="first"))
    many = Layer()
    for number in range(8_000):
        many.file(f"f{number}", b"x")
    source = oci(tmp_path / "oci", [many.bytes()], packed=bytes)
    process = subprocess.Popen([sys.executable, "-c", ADD, str(store.folder), str(source)])
    unpacking = store.folder / "unpacking"
    try:
        until(lambda: any(unpacking.glob("*/root/f*")), "files that are unpacked")
        process.send_signal(signal.SIGKILL)
    finally:
        process.wait()
    assert [image.name for image in store.images()] == ["first"]
    assert len(layers_of(store)) == 1
    left = list(unpacking.iterdir())
    assert left
    for folder in left:  # as if the kill had been a while ago
        os.utime(folder, (0, 0))
    assert store.gc().layers == 0
    assert list(unpacking.iterdir()) == []
    store.add(source)
    with store.use("task") as (_, (folder,)):
        assert len(os.listdir(folder)) == 8_000


def test_many_processes_add_the_same_image_at_once(store, tmp_path) -> None:
    source = oci(tmp_path / "oci", [layer({"a": "1"}), layer({"b": "2"})])
    command = [sys.executable, "-c", ADD, str(store.folder), str(source)]
    crowd = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in crowd] == [0] * 3
    assert trees(store, "task") == [{"b": "2"}, {"a": "1"}]
    assert len(layers_of(store)) == 2
    assert list((store.folder / "unpacking").iterdir()) == []


def test_an_image_is_extended_by_a_layer_which_goes_with_its_name(store, tmp_path) -> None:
    (base,) = store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    above = tmp_path / "above.tar"
    above.write_bytes(layer({"b": "2"}))
    made = store.extend(base, above, "more", ImageConfig(user="agent", start="serve"))
    assert (made.layers[0], made.config.start) == (base.layers[0], "serve")
    assert store.find("more") == made
    assert trees(store, "more") == [{"b": "2"}, {"a": "1"}]
    named = store.extend(made, None, "same", made.config)
    assert named.layers == made.layers
    store.remove("more")
    assert store.gc().layers == 0
    store.remove("same")
    assert store.gc().layers == 1


def test_steps_of_builds_are_forgotten_after_a_week(store, tmp_path) -> None:
    (base,) = store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    for name in (f"{BUILD}old", f"{BUILD}new"):
        store.extend(base, None, name, base.config)
    record = store._record(f"{BUILD}old")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"added": 0.0}))
    store.gc()
    assert [image.name for image in store.images()] == [f"{BUILD}new", "task"]


def test_a_builds_own_image_is_forgotten_after_a_week_unless_a_tag_points_at_it(
    store, tmp_path
) -> None:
    (base,) = store.add(oci(tmp_path / "oci", [layer({"a": "1"})]))
    kept, left = (f"t:{uuid.uuid4()}" for _ in range(2))
    for name, user in (("t:v1", "new"), (kept, "new"), (left, "old")):
        store.extend(base, None, name, ImageConfig(user=user))
    for name in (kept, left):
        record = store._record(name)
        record.write_text(json.dumps(json.loads(record.read_text()) | {"added": 0.0}))
    store.gc()
    assert {image.name for image in store.images()} == {kept, "t:v1", "task"}


def test_an_image_of_too_many_layers_is_refused(store, tmp_path) -> None:
    layers = [layer({str(number): ""}) for number in range(MOST_LAYERS + 1)]
    with pytest.raises(ImageTooLarge, match="129 layers; at most 128"):
        store.add(oci(tmp_path / "oci", layers))
