"""The local provider: sandboxes in jails on this machine, one keeper process each.

A sandbox is a folder with a socket in it, whose name is the sandbox's; so any worker on
the machine finds, uses and ends it, also after the one that made it has died.
"""

import asyncio
import base64
import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from worker.lifecycle.local import wire
from worker.lifecycle.local.folder import ABOUT, LOG, PID, SOCKET, mark_of, put, short_path
from worker.lifecycle.local.inside import MOST
from worker.lifecycle.provider import (
    FILE_ERRORS,
    Command,
    ExecResult,
    FileRefused,
    Kind,
    SandboxRef,
    SandboxSpec,
    Verdict,
)
from worker.lifecycle.settings import LifecycleSettings

_NAME = re.compile(r"\w[\w.-]*")


class LocalError(Exception):
    """A local sandbox could not do what it was asked to."""


class Gone(LocalError):
    """There is no such sandbox on this machine: it has ended, or was not made."""


class Unavailable(LocalError):
    """This machine cannot run one."""


class Elsewhere(LocalError):
    """It is on another machine, and nothing here can reach it."""


class LocalProvider:
    """`image` means nothing here: a sandbox has the machine's own programs, read-only."""

    name = "local"

    def __init__(self, folder: Path | str | None = None) -> None:
        default = Path(tempfile.gettempdir()) / f"penstock-sandboxes-{os.getuid()}"
        self._root = Path(folder or LifecycleSettings.load().local_sandboxes or default).absolute()

    @property
    def scope(self) -> str:
        """With the folder's own mark: containers may share a host's name, and not this folder."""
        return f"local@{socket.gethostname()}:{self._root}:{mark_of(self._root)}"

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        folder = self._folder(name)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._root.stat().st_uid != os.getuid():
            raise Unavailable(
                f"{self._root} belongs to another user; set PENSTOCK_LOCAL_SANDBOXES to a folder"
                " of yours"
            )
        folder.mkdir(mode=0o700)  # a name that is taken raises
        about = {
            "name": name, "tags": dict(tags), "ttl": ttl, "env": dict(spec.env),
            "memory_mb": spec.memory_mb,
        }  # fmt: skip
        _launch(folder, about)
        return self._ref(name)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        try:
            async with asyncio.timeout(timeout):
                await self._ask(ref.id, {"op": "alive"})
        except Gone as gone:
            words = self._last_words(ref.name)
            raise Gone(f"its keeper process ended during the start: {words or gone}") from None

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        """Its keeper listens already; `meta` says how strongly it is isolated."""
        async with asyncio.timeout(timeout):
            said = await self._ask(ref.id, {"op": "alive"})
        return SandboxRef(ref.id, ref.name, {**ref.meta, "isolation": said.get("isolation")})

    async def close_runtime(self, ref: SandboxRef) -> None:
        return

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        asked = {"argv": list(command.argv), "timeout": command.timeout, "cwd": command.cwd}
        asked["env"] = dict(command.env)
        _check_size("its input", command.stdin)
        said, out, err = await self._exchange(ref.id, {"op": "exec", **asked}, command.stdin)
        return ExecResult(said["exit_code"], out, err, said["timed_out"])

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        said, content, _ = await self._exchange(ref.id, {"op": "read", "path": path})
        _raise_what_was_met(said, path)
        return content

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None:
        _check_size(path, content)
        said, _, _ = await self._exchange(ref.id, {"op": "write", "path": path}, content)
        _raise_what_was_met(said, path)

    async def is_alive(self, ref: SandboxRef) -> bool:
        try:
            return bool((await self._ask(ref.id, {"op": "alive"}))["alive"])
        except (LocalError, OSError):
            return False

    async def terminate(self, id: str) -> None:
        """By a word; by SIGKILL where that is not heard. Its jail dies with its keeper."""
        name = _name_here(id)
        with contextlib.suppress(LocalError, OSError, TimeoutError):
            async with asyncio.timeout(2):
                await self._ask(id, {"op": "end"})
                await self._until_gone(name)
                return
        if self._lives(name):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid(name), signal.SIGKILL)
        await self._until_gone(name)

    async def _until_gone(self, name: str) -> None:
        """Wait for the kernel's event, which also comes for a process that is not our child."""
        if pid := self._pid(name):
            with contextlib.suppress(ProcessLookupError):
                await self._ended(name, os.pidfd_open(pid))
        self._clear(name)

    async def _ended(self, name: str, process: int) -> None:
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(process, readable.set)
        try:
            if self._lives(name):  # since it was opened: no other process has its number
                await readable.wait()
        finally:
            loop.remove_reader(process)
            os.close(process)

    async def find(self, name: str) -> SandboxRef | None:
        return self._ref(name) if self._lives(name) else None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        for folder in sorted(self._root.glob("*")):
            try:
                theirs = json.loads((folder / ABOUT).read_text())["tags"]
            except (FileNotFoundError, ValueError):
                continue  # it is coming or going
            if tags.items() <= theirs.items() and self._lives(folder.name):
                yield self._ref(folder.name)

    def classify(self, problem: BaseException) -> Verdict:
        match problem:
            case Gone():
                return Verdict(Kind.GONE)
            case Unavailable():
                return Verdict(
                    Kind.FATAL, nothing_made=True, advice="`penstock doctor` says what is missing"
                )
            case FileExistsError():
                return Verdict(Kind.EXISTS)
        return Verdict(Kind.RETRY)

    async def close(self) -> None:
        return

    async def _exchange(
        self, id: str, header: dict[str, Any], body: bytes = b""
    ) -> tuple[dict[str, Any], bytes, bytes]:
        """What came of it, and what was read."""
        said, blobs = await self._say(id, {**header, "raw": True}, body)
        match blobs:
            case [out, err]:
                return said, out, err
        # A keeper of an earlier version.
        if "missing" in said:
            return {"errno": errno.ENOENT, "why": said["missing"]}, b"", b""
        out, err = (base64.b64decode(said.get(name, "")) for name in ("stdout", "stderr"))
        return said, out or base64.b64decode(said.get("content", "")), err

    async def _ask(self, id: str, header: dict[str, Any]) -> dict[str, Any]:
        return (await self._say(id, header))[0]

    async def _say(
        self, id: str, header: dict[str, Any], body: bytes = b""
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        try:
            with short_path(self._folder(_name_here(id)), SOCKET) as path:
                reader, writer = await asyncio.open_unix_connection(path, limit=1 << 20)
        except (FileNotFoundError, ConnectionRefusedError) as missing:
            raise Gone(f"no sandbox {id} on this machine: {missing}") from None
        try:
            await wire.send(writer, header, body)
            said, blobs = await wire.receive(reader)
        except ConnectionError as problem:
            raise Gone(f"sandbox {id} ended during the call: {problem}") from None
        finally:
            writer.close()
        if "unavailable" in said:
            raise Unavailable(said["unavailable"])
        if "gone" in said:
            raise Gone(said["gone"])
        if "error" in said:
            raise LocalError(said["error"])
        return said, blobs

    def _ref(self, name: str) -> SandboxRef:
        return SandboxRef(f"{name}@{socket.gethostname()}", name)

    def _lives(self, name: str) -> bool:
        """By its command line, which no later process of the same number has."""
        process = Path(f"/proc/{self._pid(name)}")
        try:
            words = (process / "cmdline").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        # It has none in the instant in which it is executed.
        ours = not words or str(self._folder(name)).encode() in words.split(b"\0")
        return ours and state not in "ZX"

    def _folder(self, name: str) -> Path:
        """A record in Redis may say any name, and what is in the folder is ended and removed."""
        if not _NAME.fullmatch(name):
            raise LocalError(f"{name!r:.100} is not the name of a sandbox here")
        return self._root / name

    def _pid(self, name: str) -> int:
        try:
            return int((self._folder(name) / PID).read_text() or 0)
        except FileNotFoundError:
            return 0

    def _last_words(self, name: str) -> str:
        try:
            return (self._folder(name) / LOG).read_text().strip()[-500:]
        except FileNotFoundError:
            return ""

    def _clear(self, name: str) -> None:
        """What a keeper that was killed has left."""
        folder = self._folder(name)
        for file in folder.iterdir() if folder.exists() else ():
            file.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()


def _check_size(what: str, content: bytes) -> None:
    if len(content) > MOST:
        raise FileRefused(
            errno.EFBIG,
            f"{len(content):,} bytes; at most {MOST:,} fit into one call, so send it in parts",
            what,
        )


def _raise_what_was_met(said: dict[str, Any], path: str) -> None:
    """By the number, as `open` would have raised it here."""
    if (number := said.get("errno")) is None:
        return
    problem = OSError(number, said["why"], path)
    raise problem if isinstance(problem, FILE_ERRORS) else FileRefused(number, said["why"], path)


def _name_here(id: str) -> str:
    name, _, machine = id.partition("@")
    if machine and machine != socket.gethostname():
        raise Elsewhere(f"{name} is on {machine}; there `penstock sandboxes reap` can end it")
    return name


def _launch(folder: Path, about: dict[str, Any]) -> None:
    put(folder / ABOUT, json.dumps(about))
    with socket.socket(socket.AF_UNIX) as door, open(folder / LOG, "wb") as log:
        with short_path(folder, SOCKET) as path:
            door.bind(path)
        door.listen(128)
        command = [sys.executable, "-P", "-m", "worker.lifecycle.local.keeper", str(folder)]
        process = subprocess.Popen(  # noqa: S603
            [*command, str(door.fileno())],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(door.fileno(),),
            start_new_session=True,  # it outlives us, and Ctrl-C
        )  # fmt: skip
    put(folder / PID, str(process.pid))
    # Waited for, so that it leaves no zombie while its maker lives.
    threading.Thread(target=process.wait, name="penstock-keeper-wait", daemon=True).start()
