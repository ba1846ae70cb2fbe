"""How Penstock's HTTP services listen: on loopback unless set otherwise, until they are stopped."""

import asyncio
import contextlib
import errno
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import SecretStr

from ground import tracing
from ground.errors import SettingError
from ground.http.bounds import BoundedProtocol
from ground.loopback import is_loopback
from ground.settings import HttpSettings

log = logging.getLogger("penstock.http")

_LISTENING = "0A"  # as /proc/net/tcp has it


def listen(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket; port 0 picks a free one.

    `SettingError` names the port's setting, or the host's: it is called the same, with HOST.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only if the socket names its protocol does asyncio send small answers at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(4096)
    except (OSError, OverflowError) as refusal:
        listener.close()
        why = getattr(refusal, "strerror", None) or refusal
        if getattr(refusal, "errno", None) == errno.EADDRINUSE:
            why = f"{why}{_holder(port)}"
        setting, remedy = _mend(refusal, setting)
        said = f"{host}:{port} cannot be listened on: {why}; {remedy}"
        raise SettingError(setting, said) from None
    return listener


def _holder(port: int) -> str:
    """The process that listens there, as far as this user may see (Linux); else an empty string."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            if not inodes.isdisjoint(_open_in(process)):
                where = os.readlink(process / "cwd")
                return f" by process {process.name} ({_program(process)}, in {where})"
    return ""


def _open_in(process: Path) -> Iterator[str]:
    for link in os.listdir(process / "fd"):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield os.readlink(process / "fd" / link)


def _program(process: Path) -> str:
    """The program's name, and of Python the module or script. No other argument is shown: it may be
    a secret."""
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    name = Path(words[0]).name
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    if name.startswith("python") and re.fullmatch(r"[\w./-]+", script):
        return f"{name} {Path(script).name}"
    return name


def _mend(refusal: Exception, setting: str) -> tuple[str, str]:
    """A sentence that names the setting at fault, and what to do."""
    here = getattr(refusal, "errno", None) != errno.EADDRNOTAVAIL
    if here and not isinstance(refusal, socket.gaierror):
        return setting, "choose another port, or 0 for any"
    host = setting.replace("PORT", "HOST").replace("port", "host")
    return host, "name an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all it has"


def require_token(
    host: str, token: SecretStr | None, setting: str, *, without: bool = False
) -> None:
    """Refuse to be open to other machines without a token, unless a setting allows it."""
    if token is not None or is_loopback(host):
        return
    if not (without or HttpSettings.load().without_token):
        raise SettingError(
            setting,
            f"is not set, and anyone who reaches {host} could use the service: set it, or "
            f"{setting}_FILE; or set PENSTOCK_WITHOUT_TOKEN=1 if that is wanted",
        )
    log.warning("%s is reachable from other machines and asks for no token", host)


async def serve_on(
    listener: socket.socket,
    app: Any,
    *,
    grace: int = 10,
    at_end: Callable[[], None] | None = None,
    websockets: bool = False,
) -> None:
    """Serve until SIGTERM or Ctrl-C: then `at_end` is called, and what runs has `grace` seconds.

    `websockets` needs the package of that name.
    """
    await _server(app, grace, at_end, websockets).serve(sockets=[listener])


def serve_until_stopped(
    listener: socket.socket,
    app: Any,
    *,
    grace: int = 10,
    first: Callable[[], Coroutine[Any, Any, None]] | None = None,
) -> None:
    """Serve by `serve_on`, in a new event loop of the fastest kind there is. What comes `first`
    runs in it before anything is served; its error is the caller's."""
    server = _server(app, grace)
    server.config.load()
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        if first is not None:
            runner.run(first())
        runner.run(server.serve(sockets=[listener]))


@contextlib.contextmanager
def _ended_by_sighup(server: Any) -> Iterator[None]:
    """SIGHUP ends it in order too, and is then the process's, as uvicorn does with SIGTERM."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGHUP)
    if not main or before is signal.SIG_IGN:  # as nohup starts us
        yield
        return
    came = False

    def end(number: int, frame: object) -> None:
        nonlocal came
        came = server.should_exit = True

    signal.signal(signal.SIGHUP, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
    if came:
        signal.raise_signal(signal.SIGHUP)


def _server(
    app: Any, grace: int, at_end: Callable[[], None] | None = None, websockets: bool = False
) -> Any:
    if tracing.on():
        from ground.tracing.serving import traced

        app = traced(app)

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            with _ended_by_sighup(self), super().capture_signals():
                yield

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if at_end is not None:
                at_end()
            await super().shutdown(sockets)

    config = uvicorn.Config(
        app, log_config=None, access_log=False, backlog=4096, timeout_keep_alive=75,
        timeout_graceful_shutdown=grace, server_header=False, proxy_headers=False,
        http=BoundedProtocol, ws="websockets-sansio" if websockets else "none",
    )  # fmt: skip
    return Server(config)
