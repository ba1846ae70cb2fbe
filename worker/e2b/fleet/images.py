"""A machine says with each heartbeat which images it has for sandboxes."""

import logging
import time
from collections.abc import Iterator
from urllib.parse import unquote

from jail.images import ImageError, ImageUnknown
from jail.images.store import BUILD, ImageStore

log = logging.getLogger("penstock.worker")

_SETTLED = 1.0  # seconds since a folder's change after which another one has another time
_UNREADABLE = (ImageError, OSError, ValueError, TypeError, KeyError, AttributeError)


class Images:
    """The names of a machine's images, without those of builds' steps. Records are read once: one
    that comes, goes or is replaced changes the folder's time."""

    def __init__(self, store: ImageStore) -> None:
        self._store, self._folder = store, store.folder / "images"
        self._known: tuple[str, ...] = ()
        self._changed: float | None = None  # some systems set every folder's time to 0

    def names(self) -> tuple[str, ...]:
        try:
            changed = self._folder.stat().st_mtime
        except OSError:  # there are none yet
            return ()
        if changed != self._changed:
            self._known = tuple(sorted(self._read()))
            self._changed = changed if changed < time.time() - _SETTLED else None
        return self._known

    def _read(self) -> Iterator[str]:
        for record in self._folder.glob("*.json"):
            name = unquote(record.stem)
            if name.startswith(BUILD):
                continue
            try:
                yield self._store.find(name).name
            except ImageUnknown:  # removed meanwhile
                pass
            except _UNREADABLE as problem:  # it hides no other one
                log.warning("an image is left out: %s cannot be read: %.200s", record, problem)
