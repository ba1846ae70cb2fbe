"""`penstock images`: the images that session sandboxes of this machine can start from."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from jail.images import ImageError
from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.settings import SandboxSettings
from penstock.listing import json_array, show_list
from penstock.options import examples, given_settings, say, settings_options
from penstock.tables import Table


@click.group(
    "images",
    epilog=examples("""
Examples:

  docker save python:3.12-slim -o python.tar
  penstock images add python.tar
  penstock images add ./layout --name task-17     an OCI layout, or a plain root folder
  penstock images ls
"""),
)
def command() -> None:
    """Manage this machine's images for session sandboxes. No Docker is needed."""


@command.command(
    "add",
    epilog=examples("""
Examples:

  penstock images add python.tar
  penstock images add ./rootfs --name debian:12

A compressed archive (.tar.gz) works too. Exits with 1 if the image was refused.
"""),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--name", metavar="NAME", default="", help="Its name here. Unset: its own name.")
@settings_options
def add(path: Path, name: str) -> None:
    """Add an OCI layout, a `docker save` tar, or a plain root folder."""
    store = _store()
    store.become_their_owner()
    with _refusals():
        for image in store.add(path, name):
            say(f"{image.name}: {_layers(len(image.layers))}, {_size(image.bytes)}")


@command.command(
    "ls",
    epilog=examples("""
Examples:

  penstock images ls
"""),
)
@json_array
@settings_options
def list_images(as_json: bool) -> None:
    """List the images of this machine."""
    store = _store()
    found = [asdict(image) | {"in_use": store.in_use(image)} for image in store.images()]
    show_list(found, _table, f"no image is in {store.folder}", as_json=as_json)


def _table(images: Sequence[dict[str, Any]]) -> Table:
    table = Table("image", "layers", "size", "age", "in use")
    for image in images:
        used, age = "yes" if image["in_use"] else "", _age(time.time() - image["added"])
        table.add(image["name"], str(len(image["layers"])), _size(image["bytes"]), age, used)
    return table


@command.command(
    "rm",
    epilog=examples("""
Examples:

  penstock images rm debian:12
"""),
)
@click.argument("names", nargs=-1, required=True)
@settings_options
def remove(names: tuple[str, ...]) -> None:
    """Remove images. Running sandboxes continue. `penstock images gc` frees the disk."""
    store = _store()
    with _refusals():
        for name in names:
            say(f"{store.remove(name).name}: removed")


@command.command(
    "gc",
    epilog=examples("""
Examples:

  penstock images gc      after images were removed
"""),
)
@settings_options
def collect() -> None:
    """Delete layers that no image names and no sandbox uses."""
    store = _store()
    store.become_their_owner()
    done = store.gc()
    kept = f"; {done.in_use} more are in use" if done.in_use else ""
    say(f"{_layers(done.layers)} deleted, {_size(done.bytes)} freed{kept}")


def _store() -> ImageStore:
    given_settings()
    return ImageStore.of(ImageSettings.load(), SandboxSettings.load().sandbox_uid)


@contextmanager
def _refusals() -> Iterator[None]:
    """An image that is refused is bad news; it is no wrong setting."""
    try:
        yield
    except ImageError as refused:
        say(f"penstock: {refused}", err=True)
        raise SystemExit(1) from None


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
