"""E2B's sandboxes, each a session of this machine. What clients ask of it lies in its tags.

So any server process on the machine answers for any sandbox, and a restart forgets none.
"""

import hashlib
import json
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from worker.sandbox.e2b.problems import BoxGone, Problem
from worker.sandbox.e2b.settings import E2bSettings
from worker.sandbox.sessions import (
    Session,
    SessionExists,
    SessionGone,
    SessionInfo,
    SessionRequest,
    Sessions,
)

ENVD_VERSION = "0.5.7"  # what of upstream's envd is spoken; later ones add what is optional
DEFAULT_TIMEOUT = 300
OUR_ROOTS = ("base", "code-interpreter-v1")
_NAME_BYTES, _SECRET_BYTES = 10, 20
_NAME = re.compile(r"i[0-9a-f]{20}")
_MOST_TEXT = 16 << 10
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
    """The sandboxes of this machine."""

    def __init__(self, sessions: Sessions, settings: E2bSettings) -> None:
        self.sessions = sessions
        self._settings = settings
        self._known: dict[str, Box] = {}

    async def create(self, wanted: Mapping[str, Any], repeats: str = "") -> Box:
        """A request that repeats an earlier one, by its key, gets what that one has made."""
        metadata = _texts(wanted.get("metadata") or {}, "metadata")
        template = check_template(wanted.get("templateID"))
        network = wanted.get("network") or {}
        if not isinstance(network, dict) or network.get("allowOut"):
            raise Problem(
                "unimplemented", "network.allowOut: sandboxes here have no way out of this machine"
            )
        name, token = _new(repeats)
        request = SessionRequest(
            name=name,
            tags={_TEMPLATE: template, _METADATA: json.dumps(metadata), _TOKEN: token},
            env=_texts(wanted.get("envVars") or {}, "envVars"),
            ttl=self.ttl(wanted.get("timeout", DEFAULT_TIMEOUT)),
        )
        try:
            session = await self.sessions.open(request)
        except SessionExists:
            return await self.find(name)
        return self._remember(Box(session, template, token))

    async def fork(self, parent: Box, timeout: Any) -> Box:  # noqa: ASYNC109
        """A child with a copy of its parent's files."""
        info = await parent.session.info()
        name, token = _new()
        request = SessionRequest(
            name=name,
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


def check_template(template: object) -> str:
    if not isinstance(template, str) or template not in OUR_ROOTS:
        raise Problem(
            "not_found",
            f"template {template!r} does not exist here; base and code-interpreter-v1 do",
        )
    return template


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def box_of(token: str) -> str:
    return token[: 1 + 2 * _NAME_BYTES]


def token_of(info: SessionInfo) -> str:
    return info.tags[_TOKEN]


def _new(repeats: str = "") -> tuple[str, str]:
    """A name and a token, which begins with it: some SDKs send nothing else with their calls."""
    digest = hashlib.sha256(repeats.encode()).hexdigest() if repeats else secrets.token_hex(32)
    name = f"i{digest[: 2 * _NAME_BYTES]}"
    return name, name + secrets.token_hex(_SECRET_BYTES)


def details(info: SessionInfo, cores: int) -> dict[str, Any]:
    """What the list and a single look answer."""
    return {
        "sandboxID": info.name, "templateID": info.tags[_TEMPLATE], "clientID": "penstock",
        "startedAt": moment(info.created), "endAt": moment(info.ends), "state": "running",
        "cpuCount": cores, "memoryMB": info.memory_mb, "diskSizeMB": info.disk_mb,
        "envdVersion": ENVD_VERSION, "metadata": json.loads(info.tags[_METADATA]),
    }  # fmt: skip


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _texts(found: Any, name: str) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise Problem("invalid_argument", f"{name} must be an object of texts")
    if sum(len(key) + len(text) for key, text in found.items()) > _MOST_TEXT:
        raise Problem("invalid_argument", f"{name} has more than {_MOST_TEXT:,} characters")
    return found
