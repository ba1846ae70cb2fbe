"""The images of one machine: a record of each name, `images/<name>.json`, and their layers.

A record says how commands start in the image, and which layers it has; `layers.py` keeps those.
"""

import errno
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jail.images.archive import ImageConfig, PackedImage, PackedLayer, opened
from jail.images.errors import (
    ImageBroken,
    ImageError,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)
from jail.images.layers import Arriving, Collected, Layer, Layers, settle
from jail.images.settings import ImageSettings
from jail.images.stream import plain
from jail.images.unpack import Owners, too_large
from jail.images.users import find
from jail.inside import syscalls
from jail.inside.users import Users, unshare

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,159}")
_MOST_QUOTED = 240  # characters; with `:latest` and `.json` they still are a file's name
_BUILD_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OF_A_BUILD = re.compile(rf".+:({_BUILD_ID})")
_VERSION = 1
MOST_LAYERS = 128
BUILD = "penstock-build/"  # what names of steps begin with, which builds may use again
_KEPT = 7 * 86400.0  # seconds, for what builds alone have named
_ONE_USER = Users()


@dataclass(frozen=True)
class Image:
    """An image in the store. `layers` are keys, the lowest first."""

    name: str
    config: ImageConfig
    layers: tuple[str, ...]
    bytes: int
    added: float

    @property
    def build(self) -> str:
        """The id of the build whose own name this is: `NAME:ID`. Tags point at the same image."""
        found = _OF_A_BUILD.fullmatch(self.name)
        return found[1] if found else ""

    @property
    def content(self) -> tuple[object, ...]:
        """All but its name."""
        return self.layers, self.config


class ImageStore:
    """A folder of images. Any number of processes may use it at once."""

    def __init__(
        self, folder: Path, owners: Owners, most_bytes: int, users: Users = _ONE_USER
    ) -> None:
        self.folder, self.most, self._users = folder, most_bytes, users
        self._images, self._unpacking = folder / "images", folder / "unpacking"
        # Files that belong to other users are other layers.
        part = "layers" if users.uids is None else f"layers-{users.uids}"
        self._layers = Layers(
            folder / part, self._unpacking, owners, most_bytes, self._named_layers
        )

    @classmethod
    def of(cls, settings: ImageSettings, uid: int) -> "ImageStore":
        """The store of these settings. `uid`: the sandbox's user, whose files they are where root
        cannot give them users of their own."""
        users = find(settings.image_first_uid)
        return cls(settings.folder(), _owners(users, uid), settings.most_bytes(), users)

    @property
    def layers(self) -> Path:
        """The folder that sessions find their layers in, by key."""
        return self._layers.folder

    def become_their_owner(self) -> None:
        """Become the layers' owner before this process, with one thread, adds or deletes some. An
        ordinary user does that in a user namespace; root may do it as it is."""
        if self._users.tools:
            unshare(self._users, syscalls.NEW_USER)

    def _check_owner(self) -> None:
        if self._users.tools and os.geteuid() != 0:
            raise StoreUnusable(
                "layers belong to numbers of /etc/subuid, so this is for `penstock images`, or "
                "for a process of root"
            )

    def add(self, path: Path, name: str = "") -> list[Image]:
        """Unpack what is there, under its own names or under this one. A name that exists
        moves to the new image. All images of the archive are added, or none."""
        if not path.exists():
            raise ImageBroken(f"there is no {path}")
        self._check_owner()
        self._make()
        self._layers.sweep()
        try:
            with self._layers.arriving() as arriving:
                scratch = arriving.held.enter_context(self._layers.work())
                packed = arriving.held.enter_context(opened(path, scratch, self.most))
                images = [
                    Image(each, found.config, tuple(layer.key for layer in layers),
                          sum(layer.bytes for layer in layers), time.time())
                    for found, names in _named(packed, name, path)
                    for layers in [self._layers_of(found, arriving)]
                    for each in names
                ]  # fmt: skip
                self._write_records(images)
                return images
        except OSError as trouble:
            if trouble.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreUnusable(f"{self.folder} is full; nothing was added") from None
            raise

    def extend(self, base: Image, layer: Path | None, name: str, config: ImageConfig) -> Image:
        """Add an image: `base` with one layer more, a tar, or with none. If another image had the
        name, it has it no more."""
        _check_name(name)
        self._check_owner()
        with self._layers.arriving() as arriving:
            for key in base.layers:
                arriving.held.enter_context(self._layers.hold(key))
            layers = [self._layers.about(key) for key in base.layers]
            if layer:
                packed = PackedLayer(None, lambda: plain(layer.open("rb")))
                _check_count(len(layers) + 1)
                layers.append(self._layers.put(packed, layers, arriving))
            size = sum(each.bytes for each in layers)
            image = Image(name, config, tuple(each.key for each in layers), size, time.time())
            self._write_records([image])
            return image

    def images(self) -> list[Image]:
        """The images of the store, by name."""
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
        names = [image.name for image in self.images() if not image.name.startswith(BUILD)]
        known = ", ".join(names[:10]) or "none"
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
                    held.enter_context(self._layers.hold(*image.layers))
                except FileNotFoundError:
                    if image == before:
                        raise StoreUnusable(
                            f"a layer of image {image.name!r} is missing in {self.layers}. "
                            f"Add it again: penstock images add FILE --name {image.name}"
                        ) from None
                    before = image  # maybe removed and collected since the record was read
                    continue
                yield image, [self._layers.root(key) for key in reversed(image.layers)]
                return

    def in_use(self, image: Image) -> bool:
        """Whether somebody holds a layer that no other image has."""
        return any(not self._layers.is_free(key) for key in image.layers)

    def remove(self, name: str) -> Image:
        """Forget the name. Its layers go with the next `gc`, once nobody uses them."""
        image = self.find(name)
        self._record(image.name).unlink(missing_ok=True)
        return image

    def gc(self) -> Collected:
        """Delete the layers that no image names and nobody uses."""
        if not self._unpacking.is_dir():
            return Collected()
        self._check_owner()
        self._layers.sweep()
        images = self.images()
        tagged = {image.content for image in images if not image.build}
        for image in images:
            done_with = image.build and image.content not in tagged
            if image.added < time.time() - _KEPT and (image.name.startswith(BUILD) or done_with):
                self._record(image.name).unlink(missing_ok=True)
        done = [self._layers.drop(folder) for folder in sorted(self.folder.glob("layers*/*"))]
        return Collected(
            sum(each.layers for each in done),
            sum(each.bytes for each in done),
            sum(each.in_use for each in done),
        )

    def _layers_of(self, packed: PackedImage, arriving: Arriving) -> list[Layer]:
        """The layers of an image, in the store and held, the lowest first."""
        layers: list[Layer] = []
        _check_count(len(packed.layers))
        for layer in packed.layers:
            layers.append(self._layers.put(layer, layers, arriving))
            if sum(known.bytes for known in layers) > self.most:
                raise too_large(self.most)
        return layers

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder for files on the way into an image; gone at the end."""
        self._make()
        with self._layers.work() as folder:
            yield folder

    def _named_layers(self) -> set[str]:
        return {key for image in self.images() for key in image.layers}

    def _make(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not any(self.folder.iterdir()):  # whoever may enter could write to an image's /tmp
                self.folder.chmod(0o700)
            for part in (self._images, self.layers, self._unpacking):
                part.mkdir(exist_ok=True, mode=0o711)
        except OSError as refused:
            raise StoreUnusable(f"PENSTOCK_IMAGES: {self.folder}: {refused.strerror}") from None

    def _record(self, name: str) -> Path:
        return self._images / f"{_quoted(name)}.json"

    def _write_records(self, images: list[Image]) -> None:
        """Write the images' records. A full disk is noticed before the first of them has its
        name."""
        with self._layers.work() as work:
            for number, image in enumerate(images):
                record = work / str(number)
                record.touch(0o600)
                record.write_text(json.dumps({"version": _VERSION, **asdict(image)}))
            settle(work)
            for number, image in enumerate(images):
                os.replace(work / str(number), self._record(image.name))


def _owners(users: Users, uid: int) -> Owners:
    """The owners of files, as they look from where layers are unpacked."""
    if users.tools:
        return Owners(first=1)  # in the namespace that `become_their_owner` enters
    return Owners(first=users.uids, one=uid if os.geteuid() == 0 else None)


def _named(
    packed: list[PackedImage], name: str, path: Path
) -> list[tuple[PackedImage, tuple[str, ...]]]:
    """The images, each with its names."""
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


def _check_count(layers: int) -> None:
    if layers > MOST_LAYERS:
        raise ImageTooLarge(
            f"the image has {layers} layers; at most {MOST_LAYERS} are taken, as Docker does. "
            "Build it with fewer steps"
        )


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or len(_quoted(name)) > _MOST_QUOTED:
        raise ImageError(
            f"{name[:140]!r} is no image name: letters, digits and ._/:@+- only, at most 160; "
            f"at most {_MOST_QUOTED} if each of /:@+ counts as three"
        )


def _read(record: Path) -> Image:
    text = record.read_bytes()
    try:
        return _image(json.loads(text), record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise StoreUnusable(
            f"{record} is damaged; delete this file, and add its image again"
        ) from None


def _image(found: dict[str, Any], record: Path) -> Image:
    if found.pop("version") != _VERSION:
        raise StoreUnusable(f"{record} was written by a newer release; upgrade this one")
    fields: dict[str, Any] = found.pop("config")
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    config = ImageConfig(**(fields | lists))
    return Image(config=config, layers=tuple(found.pop("layers")), **found)
