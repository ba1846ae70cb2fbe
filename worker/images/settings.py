"""Where images lie, and how large they may be."""

import os
from pathlib import Path

from pydantic import Field

from ground import Settings

_GB = 10**9


class ImageSettings(Settings):
    """The image store of this machine."""

    images: Path | None = Field(
        None,
        description="The folder of images for session sandboxes. Unset: `/var/lib/penstock/images`"
        " for root, `~/.local/share/penstock/images` for other users.",
    )
    image_max_gb: float = Field(
        20, gt=0, description="What the layers of an image may hold together, unpacked, in GB."
    )

    def folder(self) -> Path:
        if self.images is not None:
            return self.images.absolute()
        if os.geteuid() == 0:
            return Path("/var/lib/penstock/images")
        data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share"
        return Path(data) / "penstock/images"

    def most_bytes(self) -> int:
        return int(self.image_max_gb * _GB)
