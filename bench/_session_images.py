"""Images for the suite `sessions`: a root that can run `echo`, layers above it, and a large one."""

import gzip
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sysconfig
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import zstandard

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore

_MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
_PROGRAMS = ("echo", "head", "sh", "split")
_LARGE = 64_000_000  # bytes of the layer that is unpacked
_PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda plain: gzip.compress(plain, 6),
    "zstd": lambda plain: zstandard.compress(plain, 3),
}


def add(folder: Path, store: Path, uid: int) -> None:
    """The images `one` and `twenty`, with as many layers."""
    above = [_tar({f"layer-{number}": b"%d" % number}) for number in range(19)]
    kept = ImageStore.of(ImageSettings.load(images=store), uid)
    for name, layers in (("one", []), ("twenty", above)):
        kept.add(_layout(folder / name, [_root(), *layers], name))


def unpacked(folder: Path, uid: int) -> dict[str, float]:
    """MB of a plain layer each second, however it is packed. Each has a store of its own."""
    plain, found = _large(), {}
    for how in _PACKED:
        layout = _layout(folder / f"{how}-image", [plain], "large", [_packed(how)])
        store = ImageStore.of(ImageSettings.load(images=folder / how), uid)
        began = time.perf_counter()
        store.add(layout)
        found[f"unpack {how} MB/s"] = len(plain) / 1e6 / (time.perf_counter() - began)
        for path in (folder / how, layout):
            shutil.rmtree(path)
    return found


def _root() -> bytes:
    """The machine's own programs, and the libraries that they are linked with."""
    programs = {f"bin/{name}": shutil.which(name) or f"/bin/{name}" for name in _PROGRAMS}
    said = subprocess.run(["ldd", *programs.values()], capture_output=True, text=True).stdout
    libraries = {path.lstrip("/"): path for path in re.findall(r"(/\S+) \(0x", said)}
    return _tar({name: Path(path).read_bytes() for name, path in (programs | libraries).items()})


@cache
def _packed(how: str) -> bytes:
    return _PACKED[how](_large())


@cache
def _large() -> bytes:
    """So much of Python's own library: many files of all sizes, as layers have them."""
    files: dict[str, bytes] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*")):
        if path.is_file() and sum(map(len, files.values())) < _LARGE:
            files[str(path).lstrip("/")] = path.read_bytes()
    return _tar(files)


def _tar(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _layout(folder: Path, layers: Sequence[bytes], name: str, packed: Sequence[bytes] = ()) -> Path:
    """An OCI layout of these layers, packed or plain."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        described = f"application/vnd.oci.image.{kind}"
        return {"mediaType": described, "digest": f"sha256:{digest}", "size": len(content)}

    plain = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    about = {
        "architecture": _MACHINE, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": plain},
    }  # fmt: skip
    manifest = {
        "schemaVersion": 2,
        "config": put(json.dumps(about).encode(), "config.v1+json"),
        "layers": [put(layer, "layer.v1.tar") for layer in packed or layers],
    }
    entry = put(json.dumps(manifest).encode(), "manifest.v1+json")
    named = {**entry, "annotations": {"org.opencontainers.image.ref.name": name}}
    index = {"schemaVersion": 2, "manifests": [named]}
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder
