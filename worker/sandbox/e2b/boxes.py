"""E2B's sandboxes, each a session of this machine. What clients ask of it lies in its tags.

So any server process on the machine answers for any sandbox, and a restart forgets none.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from worker.images import ImageStore
from worker.sandbox.e2b.problems import BoxGone, Problem
from worker.sandbox.e2b.settings import E2bSettings
from worker.sandbox.sessions import (
    Root,
    Session,
    SessionGone,
    SessionInfo,
    SessionRequest,
    Sessions,
)

ENVD_VERSION = "0.5.7"  # what of upstream's envd is spoken; later ones add what is optional
DEFAULT_TIMEOUT = 300
OUR_ROOTS = ("base", "code-interpreter-v1", "")
_NAME_BYTES, _SECRET_BYTES = 10, 20
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
        """What creating and connecting answer."""
        return {
            "sandboxID": self.id, "templateID": self.template, "clientID": "penstock",
            "envdVersion": ENVD_VERSION, "envdAccessToken": self.token,
            "trafficAccessToken": self.token,  # the interpreter's calls send this one alone
        }  # fmt: skip


class Boxes:
    """The sandboxes of this machine. `roots` finds the image that a template names."""

    def __init__(
        self, sessions: Sessions, settings: E2bSettings, roots: Callable[[str], Root]
    ) -> None:
        self.sessions = sessions
        self._settings = settings
        self._roots = roots
        self._known: dict[str, Box] = {}

    async def create(self, wanted: Mapping[str, Any]) -> Box:
        metadata = _texts(wanted.get("metadata") or {}, "metadata")
        template = wanted.get("templateID")
        if not isinstance(template, str):
            raise Problem("invalid_argument", "templateID is missing")
        if (wanted.get("network") or {}).get("allowOut"):
            raise Problem(
                "unimplemented", "network.allowOut: sandboxes here have no way out of this machine"
            )
        image = metadata.get(self._settings.e2b_image_metadata, "")
        name = image if template in OUR_ROOTS and image else template
        box, token = _new()
        request = SessionRequest(
            name=box,
            tags={_TEMPLATE: template, _METADATA: json.dumps(metadata), _TOKEN: token},
            env=_texts(wanted.get("envVars") or {}, "envVars"),
            ttl=self.ttl(wanted.get("timeout", DEFAULT_TIMEOUT)),
            root=self.root_of(name),
        )
        session = await self.sessions.open(request)
        return self._remember(Box(session, template, token))

    def root_of(self, template: str) -> Root | None:
        """The image's, None for the machine's own. Raises `ImageUnknown`."""
        return None if template in OUR_ROOTS else self._roots(template)

    async def fork(self, parent: Box, timeout: Any) -> Box:  # noqa: ASYNC109
        """A child with a copy of its parent's files."""
        info = await parent.session.info()
        box, token = _new()
        request = SessionRequest(
            name=box,
            tags={**info.tags, _TOKEN: token},
            ttl=self.ttl(timeout or DEFAULT_TIMEOUT),
        )
        session = await parent.session.fork(request)
        return self._remember(Box(session, parent.template, token))

    async def find(self, name: str) -> Box:
        """Raises `BoxGone`."""
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

    def _remember(self, box: Box) -> Box:
        if len(self._known) > 10_000:
            self._known.clear()
        self._known[box.id] = box
        return box


def _new() -> tuple[str, str]:
    """A name and a token, which begins with it: some SDKs send nothing else with their calls."""
    name = f"i{secrets.token_hex(_NAME_BYTES)}"
    return name, name + secrets.token_hex(_SECRET_BYTES)


def box_of(token: str) -> str:
    return token[: 1 + 2 * _NAME_BYTES]


def details(info: SessionInfo, cores: int) -> dict[str, Any]:
    """What the list and a single look answer."""
    return {
        "sandboxID": info.name, "templateID": info.tags[_TEMPLATE], "clientID": "penstock",
        "startedAt": moment(info.created), "endAt": moment(info.ends), "state": "running",
        "cpuCount": cores, "memoryMB": info.memory_mb, "diskSizeMB": info.disk_mb,
        "envdVersion": ENVD_VERSION, "metadata": json.loads(info.tags[_METADATA]),
    }  # fmt: skip


def image_root(store: ImageStore, name: str) -> Root:
    """The root of an image in the store."""
    with store.use(name) as (image, folders):
        env = dict(pair.split("=", 1) for pair in image.config.env if "=" in pair)
        return Root(
            image.name, [str(folder) for folder in folders],
            env=env, user=image.config.user, workdir=image.config.workdir,
        )  # fmt: skip


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _texts(found: Any, name: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise Problem("invalid_argument", f"{name} must be an object of texts")
    return found
