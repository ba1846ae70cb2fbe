"""Session sandboxes of this machine: what any user of them is written against.

    sessions = LocalSessions()
    session = await sessions.open(SessionRequest(ttl=600))
    ended = await session.run(CommandRequest(["bash", "-lc", "make test"]), stdin=b"", timeout=60)
    await session.end()

`Sessions` are those of one machine and user; `LocalSessions` of `client.py` keeps this protocol.
All of it is safe to use from several processes at once: a session belongs to none of them. Who
holds it is the lifecycle's affair (`worker/lifecycle`), or that of the caller's own records.
"""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from jail.isolation.levels import Level

Stream = Literal["stdout", "stderr", "pty"]


@dataclass(frozen=True)
class Network:
    """The network that a session may reach, through the proxy that `HTTP_PROXY` in its environment
    names.

    A rule of `allow` is `host:port`, `host:from-to` or `host:*`. The host is a name, `*.name` for
    all below it, an address, a network, or `public`. Without ports, a name has 80 and 443, and all
    else has all. `deny` takes addresses and networks away again. The machine's own setting,
    `PENSTOCK_SESSION_NETWORK`, bounds all of it.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, rules in (("allow", self.allow), ("deny", self.deny)):
            if isinstance(rules, str) or not all(isinstance(rule, str) for rule in rules):
                raise ValueError(f"network: {name} is a list of texts, such as ['pypi.org']")


@dataclass(frozen=True)
class SessionRequest:
    """The session to open. What is None is the machine's own setting."""

    name: str = ""  # empty: one is made up
    tags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    memory_mb: int | None = None
    disk_mb: int | None = None
    processes: int | None = None  # and threads
    ttl: float = 3600.0  # seconds until it ends, whatever happens in it
    idle: float | None = None  # seconds without any call until it ends; None: only `ttl` counts
    tied: bool = False  # whether it ends when the process that opened it ends or closes it
    image: str = ""  # of `penstock images`; empty: this machine's own programs
    network: Network | None = None  # None: nothing but its own loopback


@dataclass(frozen=True)
class SessionInfo:
    """A living session. Times are seconds since 1970."""

    name: str
    isolation: Level
    tags: Mapping[str, str]
    created: float
    ends: float  # at the latest
    idle: float | None
    image: str = ""  # empty for the machine's own programs
    memory_mb: int = 0
    disk_mb: int = 0
    processes: int = 0
    last_used: float = 0.0
    last_command: str = ""
    network: Network | None = None


@dataclass(frozen=True)
class Usage:
    """The figures of what a session uses now. `memory` and `processes` count all that runs in
    it."""

    memory: int  # bytes
    processes: int
    disk: int  # bytes, of its own files


@dataclass(frozen=True)
class Terminal:
    """The size of a terminal; a command with one has a terminal for all its streams."""

    columns: int = 80
    rows: int = 24


@dataclass(frozen=True)
class CommandRequest:
    """A command for a session. Its environment is the session's, then this one.

    `stdin`: whether it has an input that is written to (`Process.write`); else it reads nothing.
    `timeout`: seconds until it is killed with its process group; None: the session's own end.
    `kept`: whether it goes on when its caller hangs up, as an agent's server does. A command that
    is not kept is killed then.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""  # relative to the home of its user; empty: the image's working folder
    user: str = ""  # a name, a number, or either with `:group`; empty: the image's user
    stdin: bool = False
    terminal: Terminal | None = None
    timeout: float | None = None
    kept: bool = False
    tag: str = ""  # by which it can be found besides its number


@dataclass(frozen=True)
class Output:
    """A piece of what a command wrote."""

    stream: Stream
    data: bytes


@dataclass(frozen=True)
class Exit:
    """How a command's own process ended.

    `code`: None if a signal ended it. `why`: empty; or `timeout`, `memory_limit`,
    `process_limit`, `not_found`, `not_executable`, `no_folder`, `no_user`, `session_ended`.
    `message` says more of the four that never began: their codes are those of a shell, 127 for
    `not_found` and 126.
    """

    code: int | None
    signal: int | None = None
    why: str = ""
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Finished:
    """A command that ran to its end, with what it wrote."""

    exit: Exit
    stdout: bytes = b""
    stderr: bytes = b""


@dataclass(frozen=True)
class ProcessInfo:
    """A command that runs, or ended a while ago. `pid` is its number inside the session."""

    pid: int
    tag: str
    command: CommandRequest
    started: float
    exit: Exit | None = None


@dataclass(frozen=True)
class Entry:
    """A file or folder. `kind` is that of the entry itself; `target` what a link points to."""

    path: str  # absolute, inside
    kind: Literal["file", "folder", "link", "other"]
    size: int
    mode: int  # permissions
    user: str
    group: str
    modified: float
    target: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Change:
    """Something happened to an entry of a watched folder; `path` is absolute."""

    kind: Literal["create", "write", "remove", "rename", "chmod"]
    path: str


class Process(Protocol):
    """A command that was started, or found again. `events` may be read by one at a time.

    Closing it, or a caller that ends, leaves a kept command alone.
    """

    @property
    def pid(self) -> int:
        """Inside the session."""

    def events(self) -> AsyncGenerator[Output | Exit, None]:
        """A command's output as it comes, and its exit. `Exit` comes once, when its own process has
        ended and all that it wrote was passed on. After that come the outputs of its background
        processes, until all of them have closed the streams."""

    async def wait(self) -> Exit:
        """Wait until its own process has ended; its output is dropped."""

    async def write(self, data: bytes) -> None:
        """Write to its input or terminal. What it no longer reads is dropped."""

    async def close_stdin(self) -> None:
        """End the command's input; a terminal's by Ctrl-D."""

    async def signal(self, number: int) -> None:
        """Signal its process group. Raises `SessionRefused` for a number that is no signal."""

    async def resize(self, terminal: Terminal) -> None:
        """Set the size of its terminal. Raises `SessionRefused` for a size that none can have."""

    async def close(self) -> None:
        """Hang up."""


class Session(Protocol):
    """An open session. Every call raises `SessionGone` once it has ended."""

    @property
    def name(self) -> str:
        """The name by which any process finds it."""

    async def info(self) -> SessionInfo:
        """Read what the session is, without counting as a use of it."""

    async def usage(self) -> Usage:
        """Read what the session uses now."""

    async def keep(self, *, ttl: float | None = None, idle: float | None = None) -> SessionInfo:
        """Set its time limits, in seconds from now."""

    async def connect(self, network: Network | None) -> SessionInfo:
        """Set what it may reach. What no longer may be is cut; commands that begin from now on
        have the proxy in their environment."""

    async def run(
        self,
        command: CommandRequest,
        *,
        stdin: bytes = b"",
        most: int | None = None,
    ) -> Finished:
        """Run one command to its end. Returns when its own process has ended, whatever it left in
        the background. Of each output `most` bytes are kept, at most 64 MiB."""

    async def start(self, command: CommandRequest) -> Process:
        """Begin one command, and return at once."""

    async def attach(self, which: int | str) -> Process:
        """Find a command again, by its number or tag: what it writes from now on, and its exit.
        Of those that have ended the last 64 are known. Raises `ProcessGone`."""

    async def processes(self) -> list[ProcessInfo]:
        """The commands that run now."""

    async def write_stdin(self, which: int | str, data: bytes) -> None:
        """Write to the input or terminal of a command that another caller may have started. Raises
        `ProcessGone`, and `SessionRefused` if it was started without one, or it was closed."""

    async def close_stdin(self, which: int | str) -> None:
        """End the input of a command, as `write_stdin` writes to it."""

    async def signal(self, which: int | str, number: int) -> None:
        """Signal the process group of a command. Raises `ProcessGone`, and `SessionRefused` for a
        number that is no signal."""

    async def resize(self, which: int | str, terminal: Terminal) -> None:
        """Set the size of a command's terminal. Raises as `signal` does."""

    def read(self, path: str, *, user: str = "") -> AsyncGenerator[bytes, None]:
        """A file's content in pieces."""

    async def write(
        self,
        path: str,
        content: bytes | AsyncIterable[bytes],
        *,
        user: str = "",
        mode: int | None = None,
    ) -> Entry:
        """Make or replace a file, and the folders above it."""

    async def stat(self, path: str, *, user: str = "") -> Entry:
        """Read what is at a path; a link is not followed."""

    async def list(self, path: str, *, depth: int = 1, user: str = "") -> list[Entry]:
        """List a folder, `depth` folders deep. At most 100,000 entries, and 32 MiB of what is said
        about them."""

    async def make_folder(self, path: str, *, user: str = "") -> bool:
        """Make a folder with those above it; False if it was there."""

    async def move(self, path: str, to: str, *, user: str = "") -> Entry:
        """Rename, and replace what is there."""

    async def remove(self, path: str, *, user: str = "") -> None:
        """Remove a file, or a folder with all in it. Raises `FileNotFoundError`."""

    def watch(
        self, path: str, *, recursive: bool = False, user: str = ""
    ) -> AsyncGenerator[Change | None, None]:
        """Changes in a folder as they come. The first is None: from then on none is missed. At
        most 16 at once in a session, and as many as the kernel allows its user. Raises
        `TooManySessions`."""

    async def place(self, packed: AsyncIterable[bytes]) -> None:
        """Write many files, folders and links at once, as root; each as `packing.head` says it."""

    async def layer(self, path: Path, most: int) -> int:
        """Write what it has changed since its image as a layer, a tar of at most so many bytes;
        how many entries. Raises `ImageTooLarge`."""

    async def fork(self, request: SessionRequest) -> "Session":
        """A new session with a copy of this one's files, from the same image; its processes are
        not copied. Its environment is this one's, then the request's."""

    async def end(self) -> None:
        """End it, and know that nothing of it is left. One that has ended is ended."""


class Sessions(Protocol):
    """The sessions of this machine's user."""

    async def open(self, request: SessionRequest) -> Session:
        """Make one that can run commands. Raises `SessionExists`, `SessionRefused`,
        `TooManySessions`, and `SandboxUnavailable` where this machine cannot isolate."""

    async def get(self, name: str) -> Session:
        """The living session of that name. Raises `SessionGone`."""

    def list(self, tags: Mapping[str, str] | None = None) -> AsyncIterator[SessionInfo]:
        """The living sessions that carry all of these tags."""

    async def end(self, name: str) -> bool:
        """End one; whether there was one."""

    async def close(self) -> None:
        """Free what this object holds. Sessions live on, except those that are tied to it."""
