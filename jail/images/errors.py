"""The errors of images. None of them says anything of a program.

PenstockError
└── ImageError
    ├── ImageUnknown     no image of that name is in the store
    ├── ImageBroken      the archive is damaged, hostile, or of a form we do not read
    ├── ImageTooLarge    it holds more than the store takes
    └── StoreUnusable    the store's folder cannot hold images
"""

from ground import PenstockError


class ImageError(PenstockError):
    """An image cannot be added or used."""


class ImageUnknown(ImageError):
    """No image of that name is in the store."""


class ImageBroken(ImageError):
    """The archive is damaged, hostile, or of a form that is not read."""


class ImageTooLarge(ImageError):
    """The image holds more than the store takes."""


class StoreUnusable(ImageError):
    """The store's folder cannot hold images."""
