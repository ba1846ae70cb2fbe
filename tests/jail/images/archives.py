"""Images as others would have made them: OCI layouts and `docker save` tars."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


@dataclass
class Layer:
    """One layer's tar, entry by entry, in the order in which they are added."""

    tar: tarfile.TarFile = field(init=False)
    _file: io.BytesIO = field(default_factory=io.BytesIO)

    def __post_init__(self) -> None:
        self.tar = tarfile.open(fileobj=self._file, mode="w:", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def file(self, name: str, content: bytes = b"", **about: Any) -> "Layer":
        return self.entry(name, tarfile.REGTYPE, content, **about)

    def folder(self, name: str, **about: Any) -> "Layer":
        return self.entry(name, tarfile.DIRTYPE, mode=about.pop("mode", 0o755), **about)

    def link(self, name: str, target: str) -> "Layer":
        return self.entry(name, tarfile.SYMTYPE, linkname=target)

    def hard_link(self, name: str, target: str) -> "Layer":
        return self.entry(name, tarfile.LNKTYPE, linkname=target)

    def entry(self, name: str, kind: bytes, content: bytes = b"", **about: Any) -> "Layer":
        member = tarfile.TarInfo(name)
        member.type, member.size, member.mode = kind, len(content), 0o644
        for key, value in about.items():
            setattr(member, key, value)
        self.tar.addfile(member, io.BytesIO(content))
        return self

    def bytes(self) -> bytes:
        self.tar.close()
        return self._file.getvalue()


def layer(files: Mapping[str, str]) -> bytes:
    made = Layer()
    for name, content in files.items():
        made.file(name, content.encode())
    return made.bytes()


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def config(layers: Sequence[bytes], **about: Any) -> dict[str, Any]:
    diff_ids = [digest(one) for one in layers]
    return {
        "architecture": MACHINE, "os": "linux", "config": about,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }  # fmt: skip


def oci(
    folder: Path,
    layers: Sequence[bytes],
    name: str = "task",
    packed: Callable[[bytes], bytes] = gzip.compress,
    **about: Any,
) -> Path:
    """An OCI layout in a folder."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes) -> dict[str, Any]:
        (blobs / digest(content).removeprefix("sha256:")).write_bytes(content)
        return {"digest": digest(content), "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "config": put(json.dumps(config(layers, **about)).encode()),
        "layers": [put(packed(one)) for one in layers],
    }
    entry = put(json.dumps(manifest).encode())
    if name:
        entry["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    return folder


def docker(path: Path, images: Mapping[str, Sequence[bytes]], **about: Any) -> Path:
    """The tar of `docker save`; a layer that two images share is a link in it."""
    made = Layer()
    manifest, seen = [], dict[bytes, str]()
    for number, (name, layers) in enumerate(images.items()):
        names = []
        for depth, one in enumerate(layers):
            inside = f"{number}-{depth}/layer.tar"
            names.append(inside)
            if one in seen:
                made.link(inside, f"../{seen[one]}")
            else:
                seen[one] = inside
                made.file(inside, one)
        text = json.dumps(config(layers, **about)).encode()
        made.file(f"{number}.json", text)
        manifest.append({"Config": f"{number}.json", "RepoTags": [name], "Layers": names})
    made.file("manifest.json", json.dumps(manifest).encode())
    path.write_bytes(made.bytes())
    return path
