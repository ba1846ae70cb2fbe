"""Images for sandboxes. They are `jail.images`; this name stays for programs that use it."""

from jail.images import (
    Image,
    ImageBroken,
    ImageError,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)

__all__ = [
    "Image",
    "ImageBroken",
    "ImageError",
    "ImageTooLarge",
    "ImageUnknown",
    "StoreUnusable",
]
