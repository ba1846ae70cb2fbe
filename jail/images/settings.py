"""The settings of images: where they are stored, and how large they may be."""

import os
from pathlib import Path

from pydantic import Field

from ground.settings import Settings

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

    image_first_uid: int = Field(
        1_900_000_000,
        ge=65_536,
        le=2_147_000_000,
        description="The first of 65,537 user and group numbers for images and their sessions, if"
        " root starts them. Keep them free.",
    )

    def folder(self) -> Path:
        if self.images is not None:
            return self.images.absolute()
        if os.geteuid() == 0:
            return Path("/var/lib/penstock/images")
        home = os.path.expanduser("~")
        home = "/" if home == "~" else home  # as a user has that no list of users names
        data = os.environ.get("XDG_DATA_HOME") or Path(home) / ".local/share"
        return Path(data) / "penstock/images"

    def most_bytes(self) -> int:
        return int(self.image_max_gb * _GB)
