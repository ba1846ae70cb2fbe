"""The unpacked layers of a store: each is there once, whole, and held while somebody uses it.

    layers/<key>/root        an unpacked layer; its users hold a shared lock on the folder
    unpacking/<random>/      under way; its maker holds the lock, so what a kill leaves is swept

The kernel drops locks with their holders, so no crash leaves a layer in use for good.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from jail.images.archive import PackedLayer
from jail.images.errors import ImageBroken
from jail.images.stream import Measured
from jail.images.unpack import LinksBelow, Owners, Unpacker

_BESIDES = 1 << 30  # bytes that a layer's headers may add to its files
_UNLOCKED = 10.0  # seconds for which a folder may be there before its maker has locked it
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Collected:
    """The result of `gc`: what it removed, and how many unnamed layers are still in use."""

    layers: int = 0
    bytes: int = 0
    in_use: int = 0


@dataclass(frozen=True)
class Layer:
    key: str
    bytes: int


@dataclass(frozen=True)
class Arriving:
    """The layers of one call: those that it brings, and the locks on all that it wants."""

    new: list[str] = field(default_factory=list)
    held: ExitStack = field(default_factory=ExitStack)


class Layers:
    """The layers whose files have the same owners. `named` says which ones some image names."""

    def __init__(
        self, folder: Path, unpacking: Path, owners: Owners, most: int,
        named: Callable[[], set[str]],
    ) -> None:  # fmt: skip
        self.folder, self._unpacking = folder, unpacking
        self._owners, self._most, self._named = owners, most, named

    def root(self, key: str) -> Path:
        return self.folder / key / "root"

    def about(self, key: str) -> Layer:
        return _about(self.folder / key)

    @contextmanager
    def hold(self, *keys: str) -> Iterator[None]:
        """Lock layers in a `with` block, so that nobody deletes them. Raises `FileNotFoundError` if
        one is not there any more."""
        held: list[int] = []
        try:
            for key in keys:
                folder = f"{self.folder}/{key}"
                held.append(_opened(folder))
                fcntl.flock(held[-1], fcntl.LOCK_SH)
                _check_name(held[-1], folder)
            yield
        finally:
            for at in held:
                os.close(at)

    def is_free(self, key: str) -> bool:
        try:
            with _lock(self.folder / key, fcntl.LOCK_EX) as alone:
                return alone
        except FileNotFoundError:
            return True

    @contextmanager
    def arriving(self) -> Iterator[Arriving]:
        """All that is put meanwhile is held. A refusal drops what is new; named layers stay."""
        layers = Arriving()
        try:
            with layers.held:
                yield layers
        except BaseException:
            for key in layers.new:
                self.drop(self.folder / key)
            raise

    def put(self, packed: PackedLayer, lower: Sequence[Layer], arriving: Arriving) -> Layer:
        """The layer, unpacked now where it is new, and held."""
        below = [layer.key for layer in lower]
        used = sum(layer.bytes for layer in lower)
        for chain in ([], below):
            with suppress(FileNotFoundError):
                if packed.diff_id is not None:
                    key = _key(packed.diff_id, chain)
                    arriving.held.enter_context(self.hold(key))
                    return self.about(key)
        try:
            return self._unpack(packed, used, None, arriving)
        except LinksBelow:
            return self._unpack(packed, used, below, arriving)

    def _unpack(
        self, packed: PackedLayer, used: int, below: list[str] | None, arriving: Arriving
    ) -> Layer:
        """Unpack a layer into a folder of its own, which gets its name only when all of it is
        right."""
        with self.work() as work, packed.open() as source:
            root = work / "root"
            root.mkdir()
            lower = None if below is None else [str(self.root(key)) for key in reversed(below)]
            measured = Measured(source, self._most + _BESIDES)
            unpacker = Unpacker(str(root), self._owners, self._most, used, lower)
            try:
                done = unpacker.unpack(measured)
            finally:
                unpacker.close()
            diff_id = measured.digest()
            if packed.diff_id not in (None, diff_id):
                raise ImageBroken(f"a layer holds {diff_id}, not {packed.diff_id}; it is damaged")
            layer = Layer(_key(diff_id, below or []), done.bytes)
            (work / "layer.json").write_text(json.dumps(asdict(layer)))
            settle(work)  # else a crash of the machine could leave a part that looks whole
            work.chmod(0o755)  # a session's init looks at it and locks it
            self._name(work, layer, arriving)
            return layer

    def _name(self, work: Path, layer: Layer, arriving: Arriving) -> None:
        """Give a layer its name. Its maker still locks it, so nobody collects it before it is held
        here."""
        while True:
            try:
                work.rename(self.folder / layer.key)
                arriving.new.append(layer.key)
            except OSError as there:  # another process has unpacked the same meanwhile
                if there.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            with suppress(FileNotFoundError):  # and may have dropped it again
                arriving.held.enter_context(self.hold(layer.key))
                return

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder of this process's, gone at the end if it was not renamed."""
        folder = Path(tempfile.mkdtemp(dir=self._unpacking))
        with _lock(folder, fcntl.LOCK_SH):
            try:
                yield folder
            finally:
                _delete(folder)

    def drop(self, folder: Path) -> Collected:
        """Delete a layer, unless an image names it or somebody uses it."""
        if folder.name in self._named():
            return Collected()
        with suppress(FileNotFoundError), _lock(folder, fcntl.LOCK_EX) as alone:
            if not alone:
                return Collected(in_use=1)
            # An image may have come to name it before we had the lock.
            if folder.name not in self._named():
                freed = _about(folder).bytes
                self._throw_away(folder)
                return Collected(1, freed)
        return Collected()

    def _throw_away(self, folder: Path) -> None:
        """Delete a layer, by a rename first, so that no half of a layer is ever found."""
        gone = Path(tempfile.mkdtemp(dir=self._unpacking))
        with _lock(gone, fcntl.LOCK_SH):
            folder.rename(gone / "gone")
            _delete(gone)

    def sweep(self) -> None:
        """Delete what killed processes have left half-made."""
        for left in self._unpacking.iterdir():
            with suppress(FileNotFoundError):
                about = left.lstat()
                if time.time() - about.st_mtime < _UNLOCKED:
                    continue
                if not stat.S_ISDIR(about.st_mode):
                    left.unlink()
                    continue
                with _lock(left, fcntl.LOCK_EX) as alone:
                    if alone:
                        _delete(left)


def settle(folder: Path) -> None:
    """Wait until all that was written to a folder's file system is on the disk."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(at) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(at)


def _key(diff_id: str, below: list[str]) -> str:
    """The key of a layer. One that links into lower layers is another one over other lower
    layers."""
    if not below:
        return diff_id.removeprefix("sha256:")
    return hashlib.sha256("\n".join([*below, diff_id]).encode()).hexdigest()


def _about(folder: Path) -> Layer:
    return Layer(**json.loads((folder / "layer.json").read_text()))


@contextmanager
def _lock(folder: Path, kind: int) -> Iterator[bool]:
    """Lock a folder that is there under its name. False: others hold it, and this wants it alone.

    A lone holder needs it for a moment only, so those who share it wait.
    """
    at = _opened(folder)
    try:
        try:
            fcntl.flock(at, kind if kind == fcntl.LOCK_SH else kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _check_name(at, folder)
        yield True
    finally:
        os.close(at)


def _opened(folder: Path | str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _check_name(at: int, folder: Path | str) -> None:
    """Check that a folder still has its name, now that it is locked. Else raises
    `FileNotFoundError`."""
    here, found = os.fstat(at), os.stat(folder)
    if (found.st_ino, found.st_dev) != (here.st_ino, here.st_dev):
        raise FileNotFoundError(folder)


def _delete(folder: Path) -> None:
    """Delete a folder with all in it, also folders that their image allows nobody to change.

    Each folder moves to the top first: so no depth is too deep, and no path too long.
    """
    left = [str(folder)]
    with suppress(FileNotFoundError):
        while left:
            at = left.pop()
            for entry in list(os.scandir(at)):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    top = str(folder / secrets.token_hex(8))
                    os.rename(entry.path, top)
                    left.append(top)
                else:
                    os.unlink(entry.path)
            if at != str(folder):
                os.rmdir(at)
        folder.rmdir()
