"""Images for sandboxes. They are `jail.images`; this name stays for programs that use it."""

from jail.images import (
    Collected,
    Image,
    ImageBroken,
    ImageConfig,
    ImageError,
    ImageSettings,
    ImageStore,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)

__all__ = [
    "Collected",
    "Image",
    "ImageBroken",
    "ImageConfig",
    "ImageError",
    "ImageSettings",
    "ImageStore",
    "ImageTooLarge",
    "ImageUnknown",
    "StoreUnusable",
]
