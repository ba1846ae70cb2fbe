"""E2B's sandboxes, each a session of this machine. What clients ask of it lies in its tags.

So any server process on the machine answers for any sandbox, and a restart forgets none.
"""

import asyncio
import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from weakref import WeakValueDictionary

from ground import tracing
from jail.images import ImageUnknown
from jail.images.store import BUILD, Image, ImageStore
from jail.sessions import (
    CommandRequest,
    LocalSessions,
    Network,
    Session,
    SessionExists,
    SessionGone,
    SessionInfo,
    SessionRequest,
    SessionTrouble,
)
from worker.e2b import network
from worker.e2b.problems import BoxGone, Problem
from worker.e2b.registered import Registered
from worker.e2b.settings import E2bSettings

ENVD_VERSION = "0.5.7"  # what of upstream's envd is spoken; later ones add what is optional
DEFAULT_TIMEOUT = 300
_TO_BE_READY, _ASK_AGAIN = 50.0, 0.2  # seconds; the SDK waits for 60
OUR_ROOTS = ("base", "code-interpreter-v1")
_NAME_BYTES, _SECRET_BYTES = 10, 20
_NAME = re.compile(r"i[0-9a-f]{20}")
_MOST_TEXT = 16 << 10
_NOT_OFFERED = ("volumeMounts", "iam")  # without them a program would lose what it keeps there
_TEMPLATE, _METADATA, _TOKEN = "e2b.template", "e2b.metadata", "e2b.token"


@dataclass(frozen=True)
class Box:
    """A sandbox that is known to have lived a moment ago."""

    session: Session
    template: str
    token: str

    @property
    def id(self) -> str:
        return self.session.name

    def answer(self) -> dict[str, Any]:
        """The answer to creating and connecting."""
        return {
            "sandboxID": self.id, "templateID": self.template, "clientID": "penstock",
            "envdVersion": ENVD_VERSION, "envdAccessToken": self.token,
            "trafficAccessToken": self.token,  # the interpreter's calls send this one alone
        }  # fmt: skip


class Boxes:
    """The sandboxes of this machine."""

    def __init__(
        self, sessions: LocalSessions, settings: E2bSettings, registered: Registered | None = None
    ) -> None:
        self.sessions = sessions
        self._settings = settings
        self._registered = registered
        self._known: dict[str, Box] = {}
        # Kept by those who hold it or wait for it.
        self._repeated: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, wanted: Mapping[str, Any], repeats: str = "") -> Box:
        """A request that repeats an earlier one, by its key, gets what that one has made, if it
        lives."""
        if not repeats:
            return await self._created(wanted, *_new())
        name, token = _new(repeats)
        turn = self._repeated.setdefault(name, asyncio.Lock())
        async with turn:
            with contextlib.suppress(BoxGone):
                if await lives(known := await self.find(name)):
                    return known
                self.forget(name)
            return await self._created(wanted, name, token)

    async def _created(self, wanted: Mapping[str, Any], name: str, token: str) -> Box:
        for what in _NOT_OFFERED:
            if wanted.get(what):
                raise Problem("unimplemented", f"{what} is not offered: docs/guide/e2b.md")
        metadata = texts(wanted.get("metadata") or {}, "metadata")
        template, image = check_template(wanted.get("templateID")), self.image_of(wanted)
        asked = wanted.get("network") or {}
        if not isinstance(asked, dict):
            raise Problem("invalid_argument", "network must be an object")
        flag = wanted.get("allow_internet_access")
        reach = self.network_for({"allow_internet_access": flag, **asked})
        request = SessionRequest(
            name=name,
            tags={_TEMPLATE: template, _METADATA: json.dumps(metadata), _TOKEN: token},
            env=texts(wanted.get("envVars") or {}, "envVars"),
            ttl=self.ttl(wanted.get("timeout", DEFAULT_TIMEOUT)),
            network=reach,
            image=image,
        )
        try:
            with tracing.span("start sandbox", {"penstock.sandbox": name}):
                session = await self._open(request)
        except ImageUnknown:
            raise unknown(image) from None
        except SessionExists:  # by another server of this machine, or it is about to be
            try:
                return await self.find(name)
            except BoxGone:
                raise Problem("unavailable", "a request with its key is under way") from None
        try:
            await self._begin(session, image)
        except BaseException as trouble:
            with contextlib.suppress(BoxGone):  # by itself, as its time was over
                await self.end(name)
            if isinstance(trouble, SessionGone):
                raise Problem(
                    "unavailable", "it ended before its template was ready: is its timeout short?"
                ) from None
            raise
        return self._remember(Box(session, template, token))

    async def _begin(self, session: Session, image: str) -> None:
        """Start what the template starts in each sandbox, and wait until it says that it is
        ready."""
        if not image:
            return
        config = (await asyncio.to_thread(self.sessions.images.find, image)).config
        if config.start:
            begun = await session.start(CommandRequest(shell(config.start), kept=True, tag="start"))
            await begun.close()
        if config.ready:
            command = CommandRequest(shell(config.ready), timeout=_TO_BE_READY)
            try:
                async with asyncio.timeout(_TO_BE_READY):
                    # Its maker wrote a question, not an event: it can only be asked again.
                    while (await session.run(command, most=0)).exit.code != 0:  # noqa: ASYNC110
                        await asyncio.sleep(_ASK_AGAIN)
            except TimeoutError:
                raise Problem(
                    "failed_precondition",
                    f"template {image!r}: its ready command did not succeed in {_TO_BE_READY:g} s",
                ) from None

    def image_of(self, wanted: Mapping[str, Any]) -> str:
        """The image that a request needs; empty for the machine's own programs."""
        template, metadata = wanted.get("templateID"), wanted.get("metadata")
        if isinstance(template, str) and template not in OUR_ROOTS:
            return template
        key = self._settings.e2b_image_metadata
        named = metadata.get(key, "") if key and isinstance(metadata, dict) else ""
        return named if isinstance(named, str) else ""

    async def check_known(self, template: str) -> None:
        """Check that a template of this name exists here, under any tag. Raises `Problem`."""
        if template not in OUR_ROOTS:
            await asyncio.to_thread(images_of, self.sessions.images, template)

    async def _open(self, request: SessionRequest, fork_of: Session | None = None) -> Session:
        """Open a session, or a fork of one, registered if there is a Redis. What failed on this
        side may be tried again."""
        open = fork_of.fork if fork_of else self.sessions.open
        try:
            if self._registered is None:
                return await open(request)
            async with self._registered.started(request.name, request.ttl) as tags:
                return await open(replace(request, tags={**request.tags, **tags}))
        except (SessionTrouble, SessionGone) as trouble:
            if fork_of and not self.here(fork_of.name):
                raise
            raise Problem("unavailable", f"it ended as it started: {trouble}") from None

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Count the start of a session that is no sandbox, such as a step's of a build."""
        return self._registered.starting() if self._registered else contextlib.nullcontext()

    async def keep(self, box: Box, seconds: float) -> None:
        """The sandbox ends in so many seconds from now."""
        await box.session.keep(ttl=seconds)
        if self._registered:
            self._registered.prolonged(box.id, seconds)

    async def end(self, name: str) -> None:
        """End a sandbox. Raises `BoxGone` if it had ended before."""
        self.forget(name)
        found = await self.sessions.end(name)
        if self._registered:
            self._registered.ended(name)
        if not found:
            raise BoxGone(name)

    def here(self, name: str) -> bool:
        """Whether this machine has it, or had it a moment ago."""
        try:
            self.sessions.named(name)
        except SessionGone:
            return False
        return True

    async def fork(self, parent: Box, timeout: Any) -> Box:  # noqa: ASYNC109
        """A child with a copy of its parent's files."""
        info = await parent.session.info()
        name, token = _new()
        request = SessionRequest(
            name=name,
            tags={**info.tags, _TOKEN: token},
            ttl=self.ttl(timeout or DEFAULT_TIMEOUT),
            network=info.network,
        )
        session = await self._open(request, parent.session)
        return self._remember(Box(session, parent.template, token))

    async def find(self, name: str) -> Box:
        """Find a sandbox by its id. Raises `BoxGone`."""
        if known := self._known.get(name):
            return known
        try:
            session = await self.sessions.get(name)
            tags = (await session.info()).tags
        except SessionGone:
            raise BoxGone(name) from None
        if _TOKEN not in tags:  # a session that was opened without E2B
            raise BoxGone(name)
        return self._remember(Box(session, tags[_TEMPLATE], tags[_TOKEN]))

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    async def living(self) -> AsyncIterator[SessionInfo]:
        async for info in self.sessions.list():
            if _TOKEN in info.tags:
                yield info

    def ttl(self, timeout: Any) -> float:
        most = self._settings.e2b_max_hours * 3600
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout < 1:
            raise Problem("invalid_argument", f"timeout is {timeout!r}; it is in seconds, from 1")
        if timeout > most:
            raise Problem(
                "invalid_argument",
                f"timeout is {timeout} s; at most {most:g} s are allowed: PENSTOCK_E2B_MAX_HOURS",
            )
        return float(timeout)

    def network_for(self, body: Mapping[str, Any]) -> Network | None:
        return network.wanted(body, self._settings.e2b_network)

    def _remember(self, box: Box) -> Box:
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[box.id] = box
        return box


def check_template(template: object) -> str:
    if not isinstance(template, str) or not template:
        raise Problem("invalid_argument", f"templateID is {template!r}; it names an image")
    return template


def shell(command: str) -> list[str]:
    """The command as E2B runs it, in a login shell; by `sh` if the image has no bash."""
    choose = "command -v bash >/dev/null && exec bash -l -c "
    return ["/bin/sh", "-c", f'{choose}"$1"; exec /bin/sh -l -c "$1"', "sh", command]


def unknown(image: str) -> Problem:
    """The problem in words by which clients know that another try is of no use."""
    return Problem(
        "not_found",
        f"template {image!r} does not exist: no image has that name here. On the machine that runs"
        f" sandboxes: penstock images add FILE --name {image}",
    )


def images_of(store: ImageStore, template: str) -> list[Image]:
    """The images of a template, one for each of its tags, the oldest first. Raises `Problem`."""
    named = [image for image in store.images() if is_tag_of(image.name, template)]
    if not named or template.startswith(BUILD):
        raise unknown(template)
    return sorted(named, key=lambda image: image.added)


def is_tag_of(image: str, template: str) -> bool:
    """Whether an image is that of a template, under any tag."""
    return image == template or image.startswith(f"{template}:")


async def lives(box: Box) -> bool:
    try:
        await box.session.info()
    except SessionGone:
        return False
    return True


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def box_of(token: str) -> str:
    return token[: 1 + 2 * _NAME_BYTES]


def token_of(info: SessionInfo) -> str:
    return info.tags[_TOKEN]


def name_by(repeats: str) -> str:
    """The name of the sandbox that requests with this key make; empty without a key."""
    return _new(repeats)[0] if repeats else ""


def _new(repeats: str = "") -> tuple[str, str]:
    """A name and a token, which begins with it: some SDKs send nothing else with their calls."""
    digest = hashlib.sha256(repeats.encode()).hexdigest() if repeats else secrets.token_hex(32)
    name = f"i{digest[: 2 * _NAME_BYTES]}"
    return name, name + secrets.token_hex(_SECRET_BYTES)


def details(info: SessionInfo, cores: int) -> dict[str, Any]:
    """The answer about one sandbox, alone or in the list."""
    reach = info.network or Network()
    return {
        "sandboxID": info.name, "templateID": info.tags[_TEMPLATE], "clientID": "penstock",
        "startedAt": moment(info.created), "endAt": moment(info.ends), "state": "running",
        "cpuCount": cores, "memoryMB": info.memory_mb, "diskSizeMB": info.disk_mb,
        "envdVersion": ENVD_VERSION, "metadata": json.loads(info.tags[_METADATA]),
        "network": {"allowOut": list(reach.allow), "denyOut": list(reach.deny)},
    }  # fmt: skip


def moment(seconds: float) -> str:
    """A file inside may have any time; one that no date has is the first or the last."""
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        found = (datetime.max if seconds > 0 else datetime.min).replace(tzinfo=UTC)
    return found.isoformat().replace("+00:00", "Z")


def texts(found: Any, name: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise Problem("invalid_argument", f"{name} must be an object of texts")
    if len(json.dumps(found)) > _MOST_TEXT:
        raise Problem("invalid_argument", f"{name} has more than {_MOST_TEXT:,} bytes as JSON")
    return found
