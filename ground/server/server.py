"""The embedded server: a private Valkey or Redis for one data directory.

Owned by the process that starts it and gone when that process ends, however it
ends. Until then it is started again where it was, should it be killed. A second
process with the same directory joins the running one. State is kept in an
append-only file, so that the next start finds it. Without a URL,
penstock/named_or_own_redis.py starts one.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Self, cast

import redis

from ground.errors import PenstockError, RedisUnavailable, SettingError
from ground.redis.connect import connect
from ground.redis.url import RedisTarget, parse_redis_url
from ground.server import keeper
from ground.server.binary import kept_server, note_server, server_of

log = logging.getLogger("penstock.redis")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0  # before a server that has ended is started again
_LIVES_WELL = 30.0  # seconds after which its end is an accident, and not one of a row
_LONGEST_SOCKET_PATH = 100  # the kernel's limit is 108 with its end, 104 on macOS
_JOIN_TIMEOUT = keeper.START_TIMEOUT + 5
# What Redis 6.2, Redis 7 before Valkey's data, and any before a later format write to their log.
_SIGNS_OF_FOREIGN_DATA = (keeper.DATA_FOLDER_SETTING, "Bad file format", "RDB format version")


class EmbeddedServer:
    """A running server. `with EmbeddedServer(folder) as server: connect(server.target)`."""

    def __init__(
        self,
        folder: Path | str,
        *,
        port: int = 0,
        binary: Path | str | None = None,
        config: Sequence[str] = (),
        say: Callable[[str], None] = log.warning,
    ) -> None:
        self.folder = _private_folder(Path(folder))
        self.restarts, self.restarting = 0, False
        self._owner: int | None = None
        self._server, self._socket = server_of(self.folder, binary), _socket_path(self.folder)
        self._config, self._say = config, say
        self._guard, self._stopping = threading.RLock(), threading.Event()
        self._keeping = threading.Thread(target=self._keep, name="penstock-redis", daemon=True)
        started = self._start_or_join(port)
        self.target = _by_socket(self.url, self._socket)
        if started:
            self._owner = os.getpid()
            atexit.register(self.stop)
            self._keeping.start()

    @property
    def owned(self) -> bool:
        """Whether this process started the server, and so ends it. A fork of it has not."""
        return self._owner == os.getpid()

    def stop(self) -> None:
        """End the server if this process owns it; its data stays. Harmless when repeated."""
        if not self.owned:
            return
        with self._guard:
            self._stopping.set()
            self._keeper.terminate()
        if self._keeping.is_alive() and self._keeping is not threading.current_thread():
            self._keeping.join()
        self._keeper.wait()
        self._owner = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _keep(self) -> None:
        """Start it again, with its data and where it was, whenever it ends unasked."""
        (_, port), pause, started = parse_redis_url(self.url).nodes[0], _FIRST_PAUSE, True
        while True:
            if started and self._lived() > _LIVES_WELL:
                pause = _FIRST_PAUSE
            if self._stopping.wait(pause):
                return
            pause = min(_LONGEST_PAUSE, 2 * pause)
            try:
                started = self._start_or_join(port)
                self.restarting = False
            except (PenstockError, OSError) as failure:
                started = False
                if not self._stopping.is_set():
                    self._say(f"redis could not be started again: {failure}")

    def _lived(self) -> float:
        """Wait for its end; how long that took."""
        since = time.monotonic()
        self._keeper.wait()
        if not self._stopping.is_set():
            self.restarts, self.restarting = self.restarts + 1, True
            self._say("redis ended; it is started again with its data")
        return time.monotonic() - since

    def _start_or_join(self, port: int) -> bool:
        """Have it run at `url`; whether this process owns it. Another may have been quicker."""
        deadline, said = time.monotonic() + _JOIN_TIMEOUT, ""
        while True:
            if said != "ready" or self._keeper.poll() is not None:
                said = self._start_keeper(port)
            if said.startswith("failed"):
                raise _refusal(said.removeprefix("failed "), port, self._server, self.folder)
            if url := _answering_url(self.folder, self._socket):
                self.url = url
                if said == "ready":
                    note_server(self.folder, self._server)
                return said == "ready"
            if time.monotonic() > deadline:
                raise RedisUnavailable(
                    f"PENSTOCK_DATA_DIR: the server of {self.folder} is held by another process "
                    f"and does not come up; look at {self.folder / keeper.LOG_FILE}"
                )
            time.sleep(0.05)  # another process is starting or stopping this very server

    def _start_keeper(self, port: int) -> str:
        config = "\n".join(self._config)
        arguments = [os.getpid(), self._server, self.folder, self._socket, port, config]
        with self._guard:
            if self._stopping.is_set():
                return "failed it is to end"
            process = self._keeper = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", keeper.__file__, *map(str, arguments)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                start_new_session=True,  # Ctrl-C is for the owner, which then ends us in order
            )  # fmt: skip
        said = ""
        try:
            with cast(IO[str], process.stdout) as answers:
                said = answers.readline().strip()
        finally:
            if said != "ready":  # it is about to end; if this was interrupted, it is stopped
                process.terminate()
                process.wait()
        return said or "failed its keeper ended without a word"


def running_server(folder: Path | str) -> RedisTarget | None:
    """The server that another process runs in a data directory, or None."""
    url = running_url(folder)
    return _by_socket(url, _socket_path(Path(folder).resolve())) if url else None


def running_url(folder: Path | str) -> str | None:
    """The URL of the embedded server that runs, or None."""
    try:
        folder = Path(folder).resolve()
    except FileNotFoundError:
        problem = "is in a working folder that was deleted: start this in another folder"
        raise SettingError("PENSTOCK_DATA_DIR", f"{folder} {problem}") from None
    try:
        return _answering_url(folder, _socket_path(folder)) or None
    except PermissionError:
        problem = f"{folder} is another user's: name one of your own, or a PENSTOCK_REDIS_URL"
        raise SettingError("PENSTOCK_DATA_DIR", problem) from None


def _answering_url(folder: Path, socket: Path) -> str:
    """The server's URL; empty while it starts or ends, or if a dead keeper left it."""
    try:
        url = (folder / keeper.URL_FILE).read_text().strip()
        with contextlib.closing(connect(_by_socket(url, socket))) as client:
            client.ping()
    except (FileNotFoundError, NotADirectoryError, redis.exceptions.RedisError):
        return ""
    return url


def _by_socket(url: str, socket: Path) -> RedisTarget:
    """The server by its socket; by its port if its owner, with another TMPDIR, has another."""
    target = parse_redis_url(url)
    return replace(target, nodes=(), path=str(socket)) if socket.exists() else target


def _private_folder(folder: Path) -> Path:
    """The folder, made private if it is new. What is in it is private in any case."""
    try:
        make_private(folder)
        (folder / "lock").touch(mode=0o600)
    except OSError as refusal:
        raise SettingError(
            "PENSTOCK_DATA_DIR",
            f"{folder} cannot hold the server's data: {refusal.strerror}; "
            "name a folder that you may write to",
        ) from None
    return folder.resolve()


def make_private(folder: Path) -> None:
    """Make a folder for state, which has secrets in it: only its owner may look, and git does not.

    An existing one belongs to its owner, unless it has our own name.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    unseen = folder / ".gitignore"
    if (new or folder.name == ".penstock") and not unseen.exists():
        unseen.touch(mode=0o600)
        unseen.write_text("*\n")


def _socket_path(folder: Path) -> Path:
    """The path of the server's socket: in the folder, or in a private one in /tmp if that would be
    too long."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    elsewhere = f"penstock-{os.getuid()}-{digest}"
    homes = [folder, Path(tempfile.gettempdir()) / elsewhere, Path("/tmp") / elsewhere]  # noqa: S108
    paths = [home / "redis.sock" for home in homes]
    return next(
        (path for path in paths if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH), paths[-1]
    )


def _refusal(problem: str, port: int, server: Path, folder: Path) -> Exception:
    if port and "in use" in problem:
        return SettingError(
            "PENSTOCK_REDIS_PORT",
            f"port {port} on 127.0.0.1 is taken; choose another, or 0 for any",
        )
    if keeper.UNLOCKABLE in problem:
        return SettingError("PENSTOCK_DATA_DIR", f"{problem}; name a folder on a local disk")
    if any(sign in problem for sign in _SIGNS_OF_FOREIGN_DATA):
        kept = kept_server(folder)
        return SettingError(
            "PENSTOCK_REDIS_SERVER",
            f"{server} cannot read what another server, likely a newer one, wrote to {folder}; "
            f"name {kept or 'that server'}, or choose another PENSTOCK_DATA_DIR",
        )
    return RedisUnavailable(
        f"PENSTOCK_DATA_DIR: the server of {folder} did not start: {problem}. It was {server}; "
        "PENSTOCK_REDIS_SERVER names another"
    )
