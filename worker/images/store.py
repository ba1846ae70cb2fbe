"""The images of one machine: each layer unpacked once, under the digest of what it holds.

    images/<name>.json       a name, its config, its layers
    layers/<key>/root        an unpacked layer; its users hold a shared lock on the folder
    unpacking/<random>/      under way; its maker holds the lock, so what a kill leaves is swept

The kernel drops locks with their holders, so no crash leaves an image in use for good.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from worker.images.archive import ImageConfig, PackedImage, PackedLayer, opened
from worker.images.errors import ImageBroken, ImageError, ImageUnknown, StoreUnusable
from worker.images.settings import ImageSettings
from worker.images.stream import Measured
from worker.images.unpack import LinksBelow, Owners, Unpacker, too_large

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}")
_VERSION = 1


@dataclass(frozen=True)
class Image:
    """An image in the store. `layers` are keys, the lowest first."""

    name: str
    config: ImageConfig
    layers: tuple[str, ...]
    bytes: int
    added: float


@dataclass(frozen=True)
class Collected:
    """What `gc` has removed, and how many unnamed layers are still in use."""

    layers: int
    bytes: int
    in_use: int


@dataclass(frozen=True)
class _Layer:
    key: str
    bytes: int


class ImageStore:
    """A folder of images. Any number of processes may use it at once."""

    def __init__(self, folder: Path, owners: Owners, most_bytes: int) -> None:
        self.folder = folder
        self._owners = owners
        self._most = most_bytes
        self._images = folder / "images"
        self._layers = folder / "layers"
        self._unpacking = folder / "unpacking"

    @classmethod
    def of(cls, settings: ImageSettings, uid: int) -> "ImageStore":
        """The store of these settings; files that root unpacks belong to the sandbox's user."""
        owners = Owners(one=uid if os.geteuid() == 0 else None)
        return cls(settings.folder(), owners, settings.most_bytes())

    def add(self, path: Path, name: str = "") -> list[Image]:
        """Unpack what lies there, under its own names or under this one. A name that exists
        moves to the new image. All images of the archive are added, or none."""
        if not path.exists():
            raise ImageBroken(f"there is no {path}")
        self._make()
        self._sweep()
        try:
            with self._all_or_none() as new, ExitStack() as held:
                scratch = held.enter_context(self._work())
                packed = held.enter_context(opened(path, scratch, self._most))
                images = [
                    Image(each, found.config, tuple(layer.key for layer in layers),
                          sum(layer.bytes for layer in layers), time.time())
                    for found, names in _named(packed, name, path)
                    for layers in [self._layers_of(found, new, held)]
                    for each in names
                ]  # fmt: skip
                self._write_records(images)
                return images
        except OSError as trouble:
            if trouble.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreUnusable(f"{self.folder} is full; nothing was added") from None
            raise

    def images(self) -> list[Image]:
        """All of them, by name."""
        if not self._images.is_dir():
            return []
        found = []
        for record in self._images.glob("*.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                found.append(_read(record))
        return sorted(found, key=lambda image: image.name)

    def find(self, name: str) -> Image:
        """The image of this name, or of this name and `:latest`."""
        _check_name(name)
        for candidate in (name, f"{name}:latest"):
            with suppress(FileNotFoundError):
                return _read(self._record(candidate))
        known = ", ".join(image.name for image in self.images()[:10]) or "none"
        raise ImageUnknown(
            f"image {name!r} does not exist in {self.folder}; known are: {known}. "
            "Add it: penstock images add FILE --name NAME"
        )

    @contextmanager
    def use(self, name: str) -> Iterator[tuple[Image, list[Path]]]:
        """The image and its layers' folders, the highest first; they stay while this is held."""
        before = None
        while True:
            image = self.find(name)
            with ExitStack() as held:
                try:
                    for key in image.layers:
                        held.enter_context(self._hold(key))
                except FileNotFoundError:
                    if image == before:
                        raise StoreUnusable(
                            f"a layer of image {image.name!r} is missing in {self._layers}. "
                            f"Add it again: penstock images add FILE --name {image.name}"
                        ) from None
                    before = image  # maybe removed and collected since the record was read
                    continue
                yield image, [self._layers / key / "root" for key in reversed(image.layers)]
                return

    def in_use(self, image: Image) -> bool:
        """Whether somebody holds a layer that no other image has."""
        return any(not self._free(key) for key in image.layers)

    def remove(self, name: str) -> Image:
        """Forget the name. Its layers go with the next `gc`, once nobody uses them."""
        image = self.find(name)
        self._record(image.name).unlink(missing_ok=True)
        return image

    def gc(self) -> Collected:
        """Delete the layers that no image names and nobody uses."""
        if not self._layers.is_dir():
            return Collected(0, 0, 0)
        self._sweep()
        done = [self._drop(folder) for folder in sorted(self._layers.iterdir())]
        return Collected(
            sum(each.layers for each in done),
            sum(each.bytes for each in done),
            sum(each.in_use for each in done),
        )

    def _drop(self, folder: Path) -> Collected:
        """Delete a layer, unless an image names it or somebody uses it."""
        if folder.name in self._named_layers():
            return Collected(0, 0, 0)
        with suppress(FileNotFoundError), _lock(folder, fcntl.LOCK_EX) as alone:
            if not alone:
                return Collected(0, 0, 1)
            # An image may have come to name it before we had the lock.
            if folder.name not in self._named_layers():
                freed = _about(folder).bytes
                self._throw_away(folder)
                return Collected(1, freed, 0)
        return Collected(0, 0, 0)

    @contextmanager
    def _all_or_none(self) -> Iterator[list[str]]:
        """The keys of layers that this call brings. A refusal drops them; named ones stay."""
        new: list[str] = []
        try:
            yield new
        except BaseException:
            for key in new:
                self._drop(self._layers / key)
            raise

    def _layers_of(self, packed: PackedImage, new: list[str], held: ExitStack) -> list[_Layer]:
        """The layers of an image, in the store and held, the lowest first."""
        layers: list[_Layer] = []
        for layer in packed.layers:
            layers.append(self._layer(layer, layers, new, held))
            if sum(known.bytes for known in layers) > self._most:
                raise too_large(self._most)
        return layers

    def _layer(
        self, packed: PackedLayer, lower: list[_Layer], new: list[str], held: ExitStack
    ) -> _Layer:
        """The layer in the store, unpacked now where it is new, and held."""
        below = [layer.key for layer in lower]
        used = sum(layer.bytes for layer in lower)
        for chain in ([], below):
            with suppress(FileNotFoundError):
                if packed.diff_id is not None:
                    key = _key(packed.diff_id, chain)
                    held.enter_context(self._hold(key))
                    return _about(self._layers / key)
        try:
            return self._unpack(packed, used, None, new, held)
        except LinksBelow:
            return self._unpack(packed, used, below, new, held)

    def _unpack(
        self, packed: PackedLayer, used: int, below: list[str] | None, new: list[str],
        held: ExitStack,
    ) -> _Layer:  # fmt: skip
        """Into a folder of its own, which gets its name only when all of it is right."""
        with self._work() as work, packed.open() as source:
            root = work / "root"
            root.mkdir()
            lower = None
            if below is not None:
                lower = [str(self._layers / key / "root") for key in reversed(below)]
            measured = Measured(source, self._most + (1 << 30))
            unpacker = Unpacker(str(root), self._owners, self._most, used, lower)
            try:
                done = unpacker.unpack(measured)
            finally:
                unpacker.close()
            diff_id = measured.digest()
            if packed.diff_id not in (None, diff_id):
                raise ImageBroken(f"a layer holds {diff_id}, not {packed.diff_id}; it is damaged")
            key = _key(diff_id, below or [])
            layer = _Layer(key, done.bytes)
            (work / "layer.json").write_text(json.dumps(asdict(layer)))
            work.chmod(0o711)  # a session's own user finds its way through
            # It is still locked by its maker: nobody collects it before it is held here.
            while True:
                try:
                    work.rename(self._layers / key)
                    new.append(key)
                except OSError as there:  # another process has unpacked the same meanwhile
                    if there.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                with suppress(FileNotFoundError):  # and may have dropped it again
                    held.enter_context(self._hold(key))
                    return layer

    @contextmanager
    def _work(self) -> Iterator[Path]:
        """A folder of this process's, gone at the end if it was not renamed."""
        folder = Path(tempfile.mkdtemp(dir=self._unpacking))
        with _lock(folder, fcntl.LOCK_SH):
            try:
                yield folder
            finally:
                _delete(folder)

    @contextmanager
    def _hold(self, key: str) -> Iterator[None]:
        """Raises `FileNotFoundError` where the layer is not there, or has just been deleted."""
        folder = self._layers / key
        with _lock(folder, fcntl.LOCK_SH):
            yield

    def _free(self, key: str) -> bool:
        try:
            with _lock(self._layers / key, fcntl.LOCK_EX) as alone:
                return alone
        except FileNotFoundError:
            return True

    def _named_layers(self) -> set[str]:
        return {key for image in self.images() for key in image.layers}

    def _throw_away(self, folder: Path) -> None:
        """By a rename, so that no half of a layer is ever found."""
        gone = Path(tempfile.mkdtemp(dir=self._unpacking))
        with _lock(gone, fcntl.LOCK_SH):
            folder.rename(gone / "gone")
            _delete(gone)

    def _sweep(self) -> None:
        """Delete what killed processes have left half-made."""
        for left in self._unpacking.iterdir():
            with suppress(FileNotFoundError):
                about = left.lstat()
                # A folder that was made this moment has no lock yet.
                if time.time() - about.st_mtime < 10:
                    continue
                if not stat.S_ISDIR(about.st_mode):
                    left.unlink()
                    continue
                with _lock(left, fcntl.LOCK_EX) as alone:
                    if alone:
                        _delete(left)

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for part in (self._images, self._layers, self._unpacking):
                part.mkdir(exist_ok=True, mode=0o711)
        except OSError as refused:
            raise StoreUnusable(f"PENSTOCK_IMAGES: {self.folder}: {refused.strerror}") from None

    def _record(self, name: str) -> Path:
        return self._images / f"{quote(name, safe='')}.json"

    def _write_records(self, images: list[Image]) -> None:
        """A full disk is noticed before the first of them has its name."""
        with self._work() as work:
            for number, image in enumerate(images):
                record = work / str(number)
                record.touch(0o600)
                record.write_text(json.dumps({"version": _VERSION, **asdict(image)}))
            for number, image in enumerate(images):
                os.replace(work / str(number), self._record(image.name))


def _named(
    packed: list[PackedImage], name: str, path: Path
) -> list[tuple[PackedImage, tuple[str, ...]]]:
    """Each image with its names."""
    if not packed:
        raise ImageBroken(f"{path} holds no image")
    if name and len(packed) > 1:
        raise ImageError(f"{path} holds {len(packed)} images; add them without --name")
    if name:
        _check_name(name)
        return [(packed[0], (name,))]
    for image in packed:
        if not image.names:
            raise ImageError(f"{path} says no name of its image; give one: --name NAME")
        for own in image.names:
            _check_name(own)
    return [(image, image.names) for image in packed]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ImageError(
            f"{name[:140]!r} is no image name: letters, digits and ._/:@+- only, at most 128"
        )


def _key(diff_id: str, below: list[str]) -> str:
    """A layer with links into lower ones is another one over other lower layers."""
    if not below:
        return diff_id.removeprefix("sha256:")
    return hashlib.sha256("\n".join([*below, diff_id]).encode()).hexdigest()


def _read(record: Path) -> Image:
    found = json.loads(record.read_text())
    if found.pop("version") != _VERSION:
        raise StoreUnusable(f"{record} was written by a newer release; upgrade this one")
    fields: dict[str, Any] = found.pop("config")
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    config = ImageConfig(**(fields | lists))
    return Image(config=config, layers=tuple(found.pop("layers")), **found)


def _about(folder: Path) -> _Layer:
    return _Layer(**json.loads((folder / "layer.json").read_text()))


@contextmanager
def _lock(folder: Path, kind: int) -> Iterator[bool]:
    """Lock a folder that is there under its name. False: others hold it, and this wants it alone.

    A lone holder needs it for a moment only, so those who share it wait.
    """
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(at, kind if kind == fcntl.LOCK_SH else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        here = os.fstat(at)
        if (found := os.stat(folder)).st_ino != here.st_ino or found.st_dev != here.st_dev:
            raise FileNotFoundError(folder)
        yield True
    finally:
        os.close(at)


def _delete(folder: Path) -> None:
    """All of it, folders included that their image allows nobody to change.

    Each folder moves to the top first: so no depth is too deep, and no path too long.
    """
    left = [str(folder)]
    with suppress(FileNotFoundError):
        while left:
            at = left.pop()
            for entry in list(os.scandir(at)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    top = str(folder / secrets.token_hex(8))
                    os.rename(entry.path, top)
                    left.append(top)
                else:
                    os.unlink(entry.path)
            if at != str(folder):
                os.rmdir(at)
        folder.rmdir()
