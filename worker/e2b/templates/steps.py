"""A build of a template: each step that changes files runs in a session, and its changes are a
layer.

A step whose layer is known, by all that went before it, is not run again.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from jail.images import Image, ImageUnknown
from jail.images.archive import ImageConfig
from jail.images.store import BUILD, ImageStore
from jail.sessions import (
    CommandRequest,
    Exit,
    LocalSessions,
    Network,
    Output,
    Session,
    SessionGone,
    SessionRequest,
)
from worker.e2b.boxes import shell
from worker.e2b.problems import Problem
from worker.e2b.templates.copying import Copying

LONGEST = 3600.0  # seconds for one step
_MOST_SAID = 1 << 20  # bytes of a step's output that are kept as logs
_LONGEST_LINE = 64 << 10  # bytes; of a longer one each piece is a line
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DEFAULT_USER = "user"  # whom E2B's templates have, and what the SDK makes of a Dockerfile names
_MAKE_USER = f"""
if ! id -u {_DEFAULT_USER} >/dev/null 2>&1; then
  n=1000; while id -u $n >/dev/null 2>&1; do n=$((n + 1)); done
  echo {_DEFAULT_USER}:x:$n:$n::/home/{_DEFAULT_USER}:/bin/sh >>/etc/passwd
  echo {_DEFAULT_USER}:x:$n: >>/etc/group
  mkdir -p /home/{_DEFAULT_USER} && chown $n:$n /home/{_DEFAULT_USER}
fi"""
Say = Callable[[str], None]
Starting = Callable[[], AbstractAsyncContextManager[None]]


class StepFailed(Exception):
    """A step that the client asked for did not work."""


class Building:
    """The state between two steps: an image so far, and how the next command starts in it."""

    def __init__(
        self, sessions: LocalSessions, base: Image, uploads: Path, network: Network | None,
        starting: Starting,
    ) -> None:  # fmt: skip
        self._sessions, self._store, self._network = sessions, sessions.images, network
        self._starting = starting  # entered around the start of each session
        self.image, self.config = base, base.config
        self._uploads = uploads
        # All that the layers so far come from.
        self._known_by = hashlib.sha256("\n".join(base.layers).encode()).hexdigest()

    async def step(self, step: Mapping[str, Any], fresh: bool, say: Say) -> None:
        """Do one step of a template's build. Raises `StepFailed`, or `Problem` for a step that is
        none."""
        kind, args = step.get("type"), [str(word) for word in step.get("args") or []]
        match kind, args:
            case "ENV", [*pairs] if len(pairs) % 2 == 0:
                self._set_env(dict(zip(pairs[::2], pairs[1::2], strict=True)))
            case "USER", [user]:
                await self._need_user(user, say)
                self.config = replace(self.config, user=user)
            case "WORKDIR", [folder]:
                await self._run("mkdir -p -- " + _quoted(folder), "", fresh, say)
                self.config = replace(self.config, workdir=self._below(folder))
            case "RUN", [command]:
                await self._run(command, self.config.user, fresh, say)
            case "RUN", [command, user, *_]:
                await self._run(command, user or self.config.user, fresh, say)
            case "COPY", [source, target, *more]:
                owner, mode = (*more, "", "")[:2]
                copying = Copying(source, self._below(target), owner or self.config.user, mode)
                await self._copy(copying, str(step.get("filesHash")), fresh, say)
            case _:
                raise Problem("invalid_argument", f"step {kind!r:.50} with {len(args)} arguments")

    def _set_env(self, more: dict[str, str]) -> None:
        env = dict(line.partition("=")[::2] for line in self.config.env) | more
        self.config = replace(self.config, env=tuple(f"{key}={env[key]}" for key in env))

    def _below(self, folder: str) -> str:
        start = self.config.workdir or "/"
        return folder if folder.startswith("/") else f"{start.rstrip('/')}/{folder}"

    async def _need_user(self, user: str, say: Say) -> None:
        """E2B's own user, whom an image from elsewhere lacks, is made."""
        if user.partition(":")[0] == _DEFAULT_USER:
            await self._run(_MAKE_USER, "0", False, say)

    async def _run(self, command: str, user: str, fresh: bool, say: Say) -> None:
        async def work(session: Session) -> None:
            env = dict(line.partition("=")[::2] for line in self.config.env)
            asked = CommandRequest(
                shell(command), env, self.config.workdir, user or "0", timeout=LONGEST
            )
            await _followed(session, asked, say)

        about = [command, user, self.config.workdir, list(self.config.env)]
        await self._layer(about, fresh, say, work)

    async def _copy(self, copying: Copying, digest: str, fresh: bool, say: Say) -> None:
        archive = self._uploads / digest
        if not _DIGEST.fullmatch(digest) or not archive.is_file():
            raise Problem("invalid_argument", "COPY: its files were not uploaded")

        async def work(session: Session) -> None:
            await copying.into(session, archive)

        await self._layer([*copying.about, digest], fresh, say, work)

    async def _layer(
        self, about: Sequence[Any], fresh: bool, say: Say, work: Callable[[Session], Any]
    ) -> None:
        text = json.dumps([self._known_by, about])
        self._known_by = hashlib.sha256(text.encode()).hexdigest()
        name = f"{BUILD}{self._known_by[:40]}"
        if not fresh and (known := await asyncio.to_thread(_known, self._store, name)):
            say("used again")
            self.image = known
            return
        async with self._session() as session:
            await work(session)
            self.image = await self._added(session, name)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        request = SessionRequest(
            image=self.image.name, ttl=LONGEST + 60, network=self._network, tied=True
        )
        async with self._starting():
            session = await self._sessions.open(request)
        try:
            yield session
        finally:
            await self._sessions.end(session.name)

    async def _added(self, session: Session, name: str) -> Image:
        with self._store.work() as folder:
            layer = folder / "layer.tar"
            await session.layer(layer, self._store.most)
            # Without the image's own settings, which the record of a template adds.
            return await asyncio.to_thread(
                self._store.extend, self.image, layer, name, ImageConfig()
            )

    async def finish(self, names: Sequence[str], start: str, ready: str) -> None:
        """Give the image its names. Cancelled, it has ended when no name can come any more."""
        config = replace(self.config, start=start, ready=ready)
        for name in names:
            giving = asyncio.ensure_future(
                asyncio.to_thread(self._store.extend, self.image, None, name, config)
            )
            try:
                await asyncio.shield(giving)
            finally:
                await asyncio.wait([giving])


def _known(store: ImageStore, name: str) -> Image | None:
    try:
        with store.use(name) as (image, _):
            return image
    except ImageUnknown:
        return None


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


async def _followed(session: Session, command: CommandRequest, say: Say) -> None:
    """Follow a command to its end; its lines are said as they come."""
    process = await session.start(command)
    rest, room, last = b"", _MOST_SAID, ""
    end: Exit | None = None
    try:
        async for event in process.events():
            if not isinstance(event, Output):
                end = event
                break
            *lines, rest = (rest + event.data).split(b"\n")
            if len(rest) > _LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in lines:
                room -= len(line)
                last = line.decode("utf-8", "replace")
                if room > 0:
                    say(last)
    finally:
        await process.close()
    if rest:
        say(last := rest.decode("utf-8", "replace"))
    if end is None:
        raise SessionGone("the step's session ended with its hub. Build again")
    if end.code != 0:
        how = f"exit code {end.code}" if end.code is not None else f"signal {end.signal}"
        raise StepFailed(f"{end.why or how}: {end.message or last}")
