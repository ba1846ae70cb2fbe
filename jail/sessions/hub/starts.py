"""The images that sessions start from. One is held until its session's init holds it itself."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from jail.images import Image
from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.images.users import find
from jail.launch import ServerConfig
from jail.settings import SandboxSettings


class ImageStart(NamedTuple):
    """The image that a session starts from, and the fork server that serves it."""

    image: Image
    config: ServerConfig
    filled: bool = False  # with another session's files, before the image becomes its root

    def on_the_wire(self) -> dict[str, Any]:
        layers, user = self.image.layers[::-1], self.image.config.user
        return {"layers": layers, "user": user, "filled": self.filled}

    def is_that_of(self, other: "ImageStart | None") -> bool:
        """Whether a session from the one is like a session from the other."""
        mine, others = self.image, other and other.image
        return others is not None and (mine.layers, mine.config) == (others.layers, others.config)

    def env(self) -> dict[str, str]:
        return dict(line.partition("=")[::2] for line in self.image.config.env if line[:1] != "=")


class Starts:
    """The images of this machine's store. One fork server serves all sessions from them."""

    def __init__(self, sandbox: SandboxSettings, settings: ImageSettings) -> None:
        self._store = ImageStore.of(settings, sandbox.sandbox_uid)
        self._config = replace(
            sandbox.config(),
            preload=(),
            users=find(settings.image_first_uid),
            layers=str(self._store.layers.resolve()),  # no link of the host leads anywhere there
        )

    @asynccontextmanager
    async def of(self, name: str, parent: ImageStart | None) -> AsyncIterator[ImageStart | None]:
        """Nothing that it needs is deleted before its init holds it too.

        A fork starts from what its parent has started from, whatever has that name by now.
        """
        if parent:
            yield parent._replace(filled=True)  # the parent's init holds it
        elif not name:
            yield None
        else:
            with ExitStack() as held:
                # In a thread: somebody who deletes a layer may hold it for a moment. The thread
                # does not end with its caller, and what it holds by then is to be let go.
                entering = asyncio.to_thread(held.enter_context, self._store.use(name))
                entered = asyncio.ensure_future(entering)
                try:
                    image, _ = await asyncio.shield(entered)
                except asyncio.CancelledError:
                    await asyncio.wait([entered])
                    raise
                yield ImageStart(image, self._config)
