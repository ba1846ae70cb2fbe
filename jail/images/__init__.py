"""Images for session sandboxes, without Docker: unpacked once, shared by all sessions."""

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
