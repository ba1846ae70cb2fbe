"""How the hub of this machine is found, and started where there is none.

A folder holds a socket for each hub. For each session it has a link of its name that leads to the
socket of its hub. The link is made by the hub before the session: so a name is given once, however
many hubs there are, and a caller that finds it knows which hub to ask. A hub with other settings,
or of another release, is another hub.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from ground import SettingError
from jail.cgroups import marks
from jail.images.settings import ImageSettings
from jail.sessions.settings import FOLDER, SessionSettings
from jail.sessions.wire import VERSION
from jail.settings import SandboxSettings

_ROOT = str(Path(__file__).parents[2])
# It forks at once, so that its parent need not wait for its imports, nor for its end. What is
# imported stays: to look through it for garbage would take a fifth of the time.
_BOOT = (
    "import gc, os, sys; os.fork() and os._exit(0); gc.disable(); sys.path.insert(0, sys.argv[1]); "
    "from jail.sessions.hub.hub import main; gc.freeze(); gc.enable(); "
    "main(*sys.argv[2:])"
)
BACKLOG = 4096  # callers that the hub has not accepted yet; asyncio would lose those beyond
_NAME = re.compile(r"\w[\w.-]{0,127}")
_MOST_BYTES = 255  # of a file's name
_HUB = ".hub-"


def valid(name: str) -> bool:
    """A name becomes one of a file, and may come from a record that anyone wrote."""
    return _NAME.fullmatch(name) is not None and len(name.encode()) <= _MOST_BYTES


class Door:
    """A door says where the hub with these settings is reached, and starts it."""

    def __init__(
        self, sandbox: SandboxSettings, sessions: SessionSettings, images: ImageSettings
    ) -> None:
        self.folder = sessions.folder()
        # The hub does not have our environment, so it is told the folder.
        images = images.model_copy(update={"images": images.folder()})
        self._settings = [each.model_dump_json() for each in (sandbox, sessions, images)]
        self.socket = f"{_HUB}{_digest(self._settings)}.sock"

    def open(self) -> None:
        """Start the hub unless it is there. Callers wait in its line while it gets ready."""
        self.require_folder()
        with locked(self.folder, self.socket):
            if answers(self.folder, self.socket):
                return  # another one was quicker
            _clear(self.folder, self.socket)
            sweep(self.folder)
            with socket.socket(socket.AF_UNIX) as listening:
                with short_path(self.folder, self.socket) as path:
                    listening.bind(path)
                    os.chmod(path, 0o600)
                listening.listen(BACKLOG)
                self._launch(listening.fileno())

    def require_folder(self) -> None:
        """Require a folder that only our user may enter: who can reach the socket may run
        commands."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise SettingError(
                FOLDER, f"{self.folder} is not a folder of this user; name one that is"
            )
        if found.st_mode & 0o022:
            raise SettingError(
                FOLDER,
                f"others may write to it, and take the hub's place: chmod go-w {self.folder}",
            )

    def _launch(self, listening: int) -> None:
        with open(self.folder / f"{self.socket}.log", "ab") as log:
            subprocess.run(  # noqa: S603
                [sys.executable, "-P", "-c", _BOOT, _ROOT, str(self.folder), self.socket,
                 str(listening), *self._settings],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=(listening,),
                # None of the secrets that a worker's own environment may have.
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                cwd=self.folder, start_new_session=True, check=True,
            )  # fmt: skip

    def last_words(self) -> str:
        """The end of the log of a hub that has ended."""
        with contextlib.suppress(OSError):
            return (self.folder / f"{self.socket}.log").read_text(errors="replace")[-500:].strip()
        return ""


def hubs(folder: Path) -> list[str]:
    """The sockets of all that were started there, living or not."""
    return sorted(path.name for path in folder.glob(f"{_HUB}*.sock"))


def hub_of(folder: Path, name: str) -> str | None:
    """The socket of the hub that keeps this session; None if there is none."""
    if not valid(name):
        return None
    try:
        target = os.readlink(folder / name)
    except OSError:
        return None
    return target if target.startswith(_HUB) and "/" not in target else None


def sweep(folder: Path) -> None:
    """Remove what hubs have left that were killed: their sessions died with them."""
    for hub in hubs(folder):
        with locked(folder, hub, wait=False) as ours:
            if ours and not answers(folder, hub):
                _clear(folder, hub)


def _clear(folder: Path, hub: str) -> None:
    for path in folder.iterdir():
        if path.is_symlink() and hub_of(folder, path.name) == hub:
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError, ValueError):
        for mark in json.loads((folder / f"{hub}.cgroups").read_text()):
            marks.sweep(Path(mark).parent)
    for suffix in ("", ".cgroups"):
        (folder / f"{hub}{suffix}").unlink(missing_ok=True)


def give_up(folder: Path, hub: str) -> None:
    """The hub ends by itself: nobody finds it any more."""
    with locked(folder, hub):
        _clear(folder, hub)
        (folder / f"{hub}.log").unlink(missing_ok=True)


@contextmanager
def locked(folder: Path, hub: str, wait: bool = True) -> Iterator[bool]:
    """Lock, so that one process at a time starts a hub, or removes what it left; return whether it
    is this one."""
    with open(folder / f"{hub}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def answers(folder: Path, hub: str) -> bool:
    with short_path(folder, hub) as path, socket.socket(socket.AF_UNIX) as trial:
        return trial.connect_ex(path) == 0


@contextmanager
def short_path(folder: Path, name: str) -> Iterator[str]:
    """A path for a socket in a folder, however long the folder's: the kernel takes 108 bytes."""
    at = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{at}/{name}"
    finally:
        os.close(at)


def _digest(settings: list[str]) -> str:
    try:
        release = metadata.version("penstock-rl")
    except metadata.PackageNotFoundError:  # on the path, but not installed
        release = ""
    about = [*settings, release, str(VERSION), sys.executable, _ROOT]
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:16]
