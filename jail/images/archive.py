"""An archive of images is an OCI layout, the tar of `docker save`, or a plain root.

An OCI layout may be a folder or a tar; today's `docker save` writes both forms into one. Names
in an archive are its maker's: none leads out of it.
"""

import gzip
import hashlib
import json
import os
import platform
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Protocol, cast

from jail.images.errors import ImageBroken, ImageTooLarge
from jail.images.stream import plain
from jail.images.unpack import MOST_PARTS

_MOST_JSON = 16 << 20
_MOST_ENTRIES, _MOST_NAME = 200_000, 512
# What headers and JSON may add to the files of an image, in a compressed archive.
_BESIDES = 1 << 30
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass(frozen=True)
class ImageConfig:
    """How a command starts in an image, unless it says otherwise."""

    env: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    start: str = ""  # of an E2B template: what runs in each sandbox from its beginning
    ready: str = ""  # and what succeeds as soon as that is ready


@dataclass(frozen=True)
class PackedLayer:
    """A layer in an archive. `diff_id` is the digest of the plain tar; None if it is known only
    when it is read."""

    diff_id: str | None
    open: Callable[[], AbstractContextManager[BinaryIO]]


@dataclass(frozen=True)
class PackedImage:
    names: tuple[str, ...]
    config: ImageConfig
    layers: tuple[PackedLayer, ...]


class _Files(Protocol):
    def open(self, name: str) -> BinaryIO: ...

    def has(self, name: str) -> bool: ...


@contextmanager
def opened(path: Path, scratch: Path, most: int) -> Iterator[list[PackedImage]]:
    """The images in a file or folder. A compressed `docker save` is unpacked into `scratch`;
    `most` bounds its bytes."""
    with ExitStack() as held:
        if path.is_dir():
            if not (path / "index.json").is_file():
                yield [_root_folder(path, scratch)]
                return
            files: _Files = _InFolder(path)
        elif not path.is_file():  # a pipe: it is read twice, and may have no end
            raise ImageBroken(f"{path} is no file; write the archive to one first")
        else:
            files = held.enter_context(_in_tar(path, scratch, most + _BESIDES))
        if files.has("manifest.json"):
            yield list(_docker(files))
        elif files.has("index.json"):
            yield list(_oci(files))
        else:
            raise ImageBroken(
                f"{path} is neither an OCI layout (index.json) nor a `docker save` "
                "(manifest.json). A tar of a plain root must be unpacked first; name its folder"
            )


class _InFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, name: str) -> BinaryIO:
        if not self.has(_inside(name)):  # a pipe would be waited for forever
            raise ImageBroken(f"the image names {name}, which is no file in {self._folder}")
        return (self._folder / _inside(name)).open("rb")

    def has(self, name: str) -> bool:
        return (self._folder / name).is_file()


class _Bounded:
    """No header makes `tarfile` read a whole archive into memory."""

    def __init__(self, file: IO[bytes] | BinaryIO) -> None:
        self._file = file
        self._gathered = 0
        self.tell, self.seekable = file.tell, file.seekable

    def begin(self) -> None:
        """A header begins."""
        self._gathered = 0

    def seek(self, position: int) -> int:
        self.begin()
        return self._file.seek(position)

    def read(self, count: int) -> bytes:
        self._gathered += count
        if count < 0 or self._gathered > 2 * _MOST_JSON:
            raise ImageBroken(f"the archive has a header of {self._gathered:,} bytes")
        return self._file.read(count)


class _Tar(tarfile.TarFile):
    """Keeps no more of a header than its entry: the rest has megabytes, if its maker likes."""

    def next(self) -> tarfile.TarInfo | None:
        cast(_Bounded, self.fileobj).begin()
        if member := super().next():
            member.pax_headers = {}
        return member


def tar_in(file: IO[bytes] | BinaryIO) -> tarfile.TarFile:
    """A plain tar of anybody's. Raises `ImageBroken` for a header that would fill the memory."""
    return _Tar.open(fileobj=cast(IO[bytes], _Bounded(file)), mode="r:")


class _InTar:
    def __init__(self, tar: tarfile.TarFile, path: Path) -> None:
        self._tar = tar
        self._path = path
        self._members: dict[str, tarfile.TarInfo] = {}
        for number, member in enumerate(tar, 1):
            if number > _MOST_ENTRIES:
                raise ImageBroken(
                    f"{path} has more than {_MOST_ENTRIES:,} entries; no archive of images has. "
                    "Is it a tar of a plain root? Unpack it, and name its folder"
                )
            if len(member.name) + len(member.linkname) > _MOST_NAME:
                tar.members.pop()  # type: ignore[attr-defined]  # no image names it
            else:
                self._members[member.name.removeprefix("./")] = member

    def open(self, name: str) -> BinaryIO:
        member = self._members.get(_inside(name))
        # `docker save` stores a layer that two images share as a link to the first.
        try:
            found = self._tar.extractfile(member) if member else None
        except (KeyError, RecursionError):  # a link to nothing, or to itself
            found = None
        if found is None:
            raise ImageBroken(f"the image names {name}, which is not in {self._path}")
        return cast(BinaryIO, found)

    def has(self, name: str) -> bool:
        return name in self._members


@contextmanager
def _in_tar(path: Path, scratch: Path, most: int) -> Iterator[_InTar]:
    with ExitStack() as held:
        file: IO[bytes] = held.enter_context(path.open("rb"))
        if file.read(2) == b"\x1f\x8b":
            unpacked = held.enter_context(tempfile.TemporaryFile(dir=scratch))
            try:
                with gzip.open(path, "rb") as packed:
                    while chunk := packed.read(1 << 20):
                        if unpacked.tell() + len(chunk) > most:
                            raise ImageTooLarge(
                                f"{path} unpacks to more than {most:,} bytes. Raise "
                                "PENSTOCK_IMAGE_MAX_GB, or unpack the archive with gunzip first"
                            )
                        unpacked.write(chunk)
            except (EOFError, zlib.error, gzip.BadGzipFile) as damage:
                raise ImageBroken(f"{path} cannot be decompressed: {damage}") from None
            file = unpacked
        file.seek(0)
        try:
            files = _InTar(held.enter_context(tar_in(file)), path)
        except (tarfile.TarError, ValueError, OverflowError, RecursionError) as damage:
            raise ImageBroken(f"{path} is no tar: {damage}") from None
        try:
            yield files
        except tarfile.ReadError as damage:  # a sparse file that says more than there is
            raise ImageBroken(f"{path} is damaged: {damage}") from None


def _docker(files: _Files) -> Iterator[PackedImage]:
    """The form of `docker save`: a list of images, each a config and its layers' tars."""
    for image in _list(_json(files, "manifest.json"), "manifest.json"):
        entry = _table(image, "manifest.json")
        config = _json(files, _text(entry.get("Config"), "Config"))
        names = tuple(_text(name, "RepoTags") for name in _list(entry.get("RepoTags") or [], ""))
        blobs = [_text(name, "Layers") for name in _list(entry.get("Layers"), "Layers")]
        yield _image(files, names, config, blobs)


def _oci(files: _Files) -> Iterator[PackedImage]:
    index = _table(_json(files, "index.json"), "index.json")
    for described in _list(index.get("manifests"), "manifests"):
        entry = _table(described, "manifests")
        notes = _table(entry.get("annotations") or {}, "annotations")
        names = tuple(str(notes[key]) for key in _NAMES if key in notes)[:1]
        manifest = _manifest(files, entry)
        config = _blob_json(files, _table(manifest.get("config"), "config"))
        layers = (_table(layer, "layers") for layer in _list(manifest.get("layers"), "layers"))
        yield _image(files, names, config, [_blob(layer) for layer in layers])


def _manifest(files: _Files, described: dict[str, Any]) -> dict[str, Any]:
    """The manifest that is meant: of an index of several machines' ones, this machine's."""
    for _ in range(4):
        found = _table(_blob_json(files, described), "manifest")
        if "manifests" not in found:
            return found
        choices = [_table(entry, "manifests") for entry in _list(found["manifests"], "manifests")]
        fit = [entry for entry in choices if _machine(entry) in (_MACHINE, "")]
        if not fit:
            known = ", ".join(sorted({_machine(entry) for entry in choices})) or "none"
            raise ImageBroken(f"the image is for {known}; this machine is {_MACHINE}")
        described = fit[0]
    raise ImageBroken("the image's index leads from index to index")


def _machine(described: dict[str, Any]) -> str:
    platform_of = _table(described.get("platform") or {}, "platform")
    return str(platform_of.get("architecture", ""))


def _image(files: _Files, names: tuple[str, ...], config: Any, blobs: list[str]) -> PackedImage:
    table = _table(config, "config")
    made_for = str(table.get("architecture") or _MACHINE)
    if made_for != _MACHINE:
        raise ImageBroken(f"the image is for {made_for}; this machine is {_MACHINE}")
    found = _list(_table(table.get("rootfs"), "rootfs").get("diff_ids"), "diff_ids")
    diff_ids = [_digest(digest) for digest in found]
    if len(diff_ids) != len(blobs):
        raise ImageBroken(f"the image names {len(diff_ids)} layers and has {len(blobs)}")
    layers = (
        PackedLayer(diff_id, _opener(files, blob))
        for diff_id, blob in zip(diff_ids, blobs, strict=True)
    )
    return PackedImage(names, _config(table.get("config")), tuple(layers))


def _opener(files: _Files, blob: str) -> Callable[[], AbstractContextManager[BinaryIO]]:
    return lambda: plain(files.open(blob))


def _config(found: Any) -> ImageConfig:
    table = _table(found or {}, "config")

    def texts(name: str) -> tuple[str, ...]:
        return tuple(_text(text, name) for text in _list(table.get(name) or [], name))

    workdir = _text(table.get("WorkingDir") or "", "WorkingDir")
    return ImageConfig(
        env=texts("Env"),
        user=_text(table.get("User") or "", "User"),
        workdir=workdir and os.path.join("/", workdir),
        entrypoint=texts("Entrypoint"),
        cmd=texts("Cmd"),
    )


def _root_folder(path: Path, scratch: Path) -> PackedImage:
    """A plain root folder is packed as a layer first: so it is judged as every other one is."""

    def packed() -> BinaryIO:
        with ExitStack() as unfinished:
            file = unfinished.enter_context(tempfile.TemporaryFile(dir=scratch))
            with tarfile.open(fileobj=file, mode="w:", format=tarfile.PAX_FORMAT) as tar:
                for entry in _everything_in(path):
                    tar.add(entry, entry.relative_to(path).as_posix(), recursive=False)
            file.seek(0)
            unfinished.pop_all()  # the reader closes it
        return cast(BinaryIO, file)

    if not any(path.iterdir()):
        raise ImageBroken(f"{path} is empty; a root folder holds bin, etc, usr and more")
    return PackedImage((), ImageConfig(), (PackedLayer(None, packed),))


def _everything_in(path: Path, depth: int = 1) -> Iterator[Path]:
    """All that is below a folder, in the order of names, so that equal folders are equal layers.
    Sockets stay outside."""
    if depth > MOST_PARTS:
        raise ImageBroken(f"folders lie more than {MOST_PARTS} deep below {str(path)[:80]!r}")
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        found = Path(entry.path)
        if entry.is_symlink() or entry.is_file():
            yield found
        elif entry.is_dir():
            yield found
            yield from _everything_in(found, depth + 1)
        elif not found.is_socket():
            yield found  # a pipe; a device is refused where every layer's is


def _json(files: _Files, name: str) -> Any:
    with files.open(name) as file:
        return _parsed(file.read(_MOST_JSON + 1), name)


def _blob_json(files: _Files, described: dict[str, Any]) -> Any:
    name = _blob(described)
    with files.open(name) as file:
        text = file.read(_MOST_JSON + 1)
    digest = f"sha256:{hashlib.sha256(text).hexdigest()}"
    if digest != described["digest"]:
        raise ImageBroken(f"{name} holds {digest}; it is damaged")
    return _parsed(text, name)


def _parsed(text: bytes, name: str) -> Any:
    if len(text) > _MOST_JSON:
        raise ImageBroken(f"{name} is larger than {_MOST_JSON:,} bytes")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise ImageBroken(f"{name} is not JSON: {problem}") from None


def _blob(described: dict[str, Any]) -> str:
    return "blobs/" + _digest(described.get("digest")).replace(":", "/")


def _digest(found: object) -> str:
    if not isinstance(found, str) or not _DIGEST.fullmatch(found):
        raise ImageBroken(f"{found!r} is no sha256 digest")
    return found


def _inside(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise ImageBroken(f"the image names {name!r}, which leads out of the archive")
    return os.path.normpath(name)


def _table(found: object, name: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ImageBroken(f"{name} is no JSON object in this image")
    return found


def _list(found: object, name: str) -> list[Any]:
    if not isinstance(found, list):
        raise ImageBroken(f"{name} is no list in this image")
    return found


def _text(found: object, name: str) -> str:
    if not isinstance(found, str):
        raise ImageBroken(f"{name} is no text in this image")
    if "\0" in found or any("\ud800" <= letter <= "\udfff" for letter in found):
        raise ImageBroken(f"{name} is {found!r:.100}, which no process can be given")
    return found
