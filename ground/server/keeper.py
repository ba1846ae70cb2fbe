"""The keeper of one embedded server: a process of its own, with only the standard library.

It holds the data directory's lock, runs the server as its child, and waits for
the first of three things: the owner's end (also by SIGKILL), its own SIGTERM, or
the server's end. Whichever comes, no server is left behind. Should the keeper
itself be killed, the kernel ends the server (Linux).

Run as `python -I keeper.py <owner pid> <server> <dir> <socket> <port> <extra config>`;
says one line on stdout: `ready`, `busy` (another keeper has the lock) or `failed <why>`.
"""

import contextlib
import ctypes
import fcntl
import os
import secrets
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

START_TIMEOUT = 60.0
STOP_TIMEOUT = 20.0
URL_FILE = "url"
CONFIG_FILE = "server.conf"
LOG_FILE, EARLIER_LOG_FILE = "server.log", "server.log.before"
UNLOCKABLE = "cannot be locked"
# Before Redis 7 there was no such setting, and the data was one file.
DATA_FOLDER_SETTING, DATA_FOLDER = "appenddirname", "appendonlydir"


def main() -> None:
    owner, server, folder, sock, port, extra = sys.argv[1:]
    os.umask(0o077)
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("busy")
        return
    except OSError as refusal:  # a cluster's shared file system may have no locks
        say(f"failed {folder} {UNLOCKABLE}: {refusal.strerror}")
        return
    Path(URL_FILE).unlink(missing_ok=True)  # a killed keeper's, whose server is gone
    with home_of(Path(sock), Path(folder)) as private:
        if private:
            try:
                keep(Ends(int(owner)), server, sock, int(port), extra, lock)
            except OSError as refusal:  # the disk is full
                say(f"failed {refusal}")
        else:
            remedy = "remove it, or set TMPDIR to a folder of your own"
            say(f"failed {Path(sock).parent} exists and is not private; {remedy}")


@contextlib.contextmanager
def home_of(sock: Path, folder: Path) -> Iterator[bool]:
    """The socket's directory while this serves; False if others can write to it."""
    if sock.parent == folder:
        yield True
        return
    sock.parent.mkdir(mode=0o700, exist_ok=True)
    found = sock.parent.lstat()
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    private = private and found.st_uid == os.getuid()
    try:
        yield private
    finally:
        if private:
            with contextlib.suppress(OSError):  # another process put a file there
                sock.parent.rmdir()


def keep(ends: "Ends", server: str, sock: str, port: int, extra: str, lock: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(LOG_FILE).replace(EARLIER_LOG_FILE)  # it may say why the last one ended
    before, password = last_address()
    for attempt in range(3):
        chosen = port or (before if attempt == 0 else 0) or free_port()
        try:
            child = launch(server, sock, chosen, password, extra, lock)
        except OSError as refusal:  # the binary is another machine's, or the disk is full
            say(f"failed {refusal}")
            return
        try:
            problem = wait_until_ready(ends, child, sock, password)
            if problem is None:
                publish(URL_FILE, f"redis://default:{password}@127.0.0.1:{chosen}/0\n")
                say("ready")
                ends.wait(child)
                return
        finally:
            Path(URL_FILE).unlink(missing_ok=True)
            end(child)
            Path(sock).unlink(missing_ok=True)
        if port or "in use" not in problem or attempt == 2:
            say(f"failed {problem}")
            return


class Ends:
    """The owner's end and our own SIGTERM, to be waited for."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.terminated, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, lambda *_: None)

    def came(self, within: float) -> bool:
        """Whether the owner has ended, or this process shall; waits a little for the latter."""
        signalled = select.select([self.terminated], [], [], within)[0]
        return bool(signalled) or os.getppid() != self.owner

    def wait(self, child: "subprocess.Popen[bytes]") -> None:
        """Wait for the first end: the owner's, this process's, the server's."""
        try:
            watched = [os.pidfd_open(self.owner), os.pidfd_open(child.pid), self.terminated]
        except (AttributeError, OSError):  # not Linux, or a kernel before 5.3
            while child.poll() is None and not self.came(within=0.5):
                pass
            return
        if os.getppid() == self.owner:  # else another process has that id by now
            select.select(watched, [], [])


def publish(file: str, text: str) -> None:
    """Write it whole: neither a reader nor the next keeper ever sees half of it."""
    Path(f"{file}.new").write_text(text)
    Path(f"{file}.new").rename(file)


def say(line: str) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(BrokenPipeError):  # the owner has ended, which is seen elsewhere
        os.write(1, f"{line}\n".encode())
    # The owner reads one line; after that no process started here may hold its pipes open.
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def last_address() -> tuple[int, str]:
    """Port and password of the server before this one, so that its URL stays valid."""
    try:
        lines = Path(CONFIG_FILE).read_text().splitlines()
        said = dict(line.partition(" ")[::2] for line in reversed(lines))
        return int(said["port"]), said["requirepass"]
    except (OSError, KeyError, ValueError):
        return 0, secrets.token_urlsafe(24)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(
    server: str, sock: str, port: int, password: str, extra: str, lock: int
) -> "subprocess.Popen[bytes]":
    Path(sock).unlink(missing_ok=True)
    # In the working folder it needs no path, in which there may be any byte.
    where = Path(sock).name if Path(sock).parent == Path.cwd() else sock
    # The password travels in a private file, never in an argument list.
    publish(
        CONFIG_FILE,
        f"bind 127.0.0.1\nport {port}\nunixsocket {quoted(where)}\nunixsocketperm 700\n"
        f'requirepass {password}\ndir .\ndaemonize no\nsave ""\nappendonly yes\n'
        f"appendfsync everysec\nmaxmemory-policy noeviction\n{data_folder()}{extra}\n",
    )
    keeper = os.getpid()
    with Path(LOG_FILE).open("wb") as log:
        # The server holds the lock too: the directory stays taken until it is really gone.
        return subprocess.Popen(  # noqa: S603
            [server, CONFIG_FILE],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            preexec_fn=lambda: die_with(keeper),
        )


def data_folder() -> str:
    """Choose the setting that makes an older server refuse to start on a newer one's data.

    It would overlook the folder, and start empty.
    """
    return f"{DATA_FOLDER_SETTING} {DATA_FOLDER}\n" if Path(DATA_FOLDER).exists() else ""


def quoted(path: str) -> str:
    """A path as one word of the server's configuration."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'


def die_with(keeper: int) -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != keeper:  # it died before the kernel knew
            os._exit(1)


def wait_until_ready(
    ends: "Ends", child: "subprocess.Popen[bytes]", sock: str, password: str
) -> str | None:
    """None once the server answers PING; else why it never will."""
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        if child.poll() is not None:
            return log_tail()
        answer = ping(sock, password)
        if b"PONG" in answer:
            return None
        if answer.startswith(b"-LOADING"):
            deadline = time.monotonic() + START_TIMEOUT
        if ends.came(within=0.005):
            return "its owner ended"
    return f"it did not answer within {START_TIMEOUT:.0f} s; {log_tail()}"


def ping(sock: str, password: str) -> bytes:
    """The answer to PING, empty if there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(sock)
            probe.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            with probe.makefile("rb") as answers:
                return answers.readline() and answers.readline()
    except OSError:
        return b""


def log_tail() -> str:
    lines = Path(LOG_FILE).read_text(errors="replace").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-3:]) or "it wrote no log"


def end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
