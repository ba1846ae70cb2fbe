"""Session sandboxes start from images, without Docker. Each layer is unpacked once, shared by all
sessions, and never changed."""

from jail.images.errors import (
    ImageBroken,
    ImageError,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)
from jail.images.store import Image

__all__ = [
    "Image",
    "ImageBroken",
    "ImageError",
    "ImageTooLarge",
    "ImageUnknown",
    "StoreUnusable",
]
