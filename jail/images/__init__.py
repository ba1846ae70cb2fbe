"""Images for session sandboxes, without Docker: unpacked once, shared by all sessions."""

from jail.images.archive import ImageConfig
from jail.images.errors import (
    ImageBroken,
    ImageError,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)
from jail.images.layers import Collected
from jail.images.settings import ImageSettings
from jail.images.store import Image, ImageStore

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
