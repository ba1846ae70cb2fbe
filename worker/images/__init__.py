"""Images for session sandboxes, without Docker: unpacked once, shared by all sessions."""

from worker.images.archive import ImageConfig
from worker.images.errors import (
    ImageBroken,
    ImageError,
    ImageTooLarge,
    ImageUnknown,
    StoreUnusable,
)
from worker.images.layers import Collected
from worker.images.settings import ImageSettings
from worker.images.store import Image, ImageStore

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
