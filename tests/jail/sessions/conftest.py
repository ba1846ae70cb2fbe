"""Session sandboxes with a hub of this test module's own, at each level that the machine has."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jail.images.settings import ImageSettings
from jail.inside import landlock
from jail.sessions import LocalSessions
from jail.sessions.settings import SessionSettings
from jail.settings import SandboxSettings
from tests.harness.remains import processes_in
from tests.jail.conftest import ORDINARY_USER, reachable_python

WITHIN = 90  # seconds that nothing here takes
ROOT = Path(__file__).parents[3]
IDLE = 5.0  # seconds after which a hub without a session ends

Make = Callable[..., LocalSessions]


async def until(holds, *given) -> None:
    """Until something is so that says it to nobody."""
    async with asyncio.timeout(WITHIN):
        while not holds(*given):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def children_of(process: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def below(process: int) -> list[int]:
    return [pid for child in children_of(process) for pid in (child, *below(child))]


def dead(processes: list[int]) -> bool:
    def state(pid: int) -> str:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return "X"

    return all(state(pid) in "ZX" for pid in processes)


def sessions_in(
    folder: Path, level: str = "ns", images: ImageSettings | None = None, **settings: Any
) -> LocalSessions:
    python = None
    if level != "ns":
        python = reachable_python(ORDINARY_USER if os.getuid() == 0 else None)
        if python is None:
            pytest.skip("an ordinary user can reach neither a Python 3.11 nor this source folder")
    if level == "landlock" and landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("this kernel has no Landlock, or one that is too old")
    given = {"local_sandboxes": str(folder), "session_hub_idle": IDLE, **settings}
    sandbox: Any = {"sandbox_level": level, "sandbox_python": python, "sandbox_memory_mb": 256}
    return LocalSessions(SandboxSettings(**sandbox), SessionSettings(**given), images)


_STARTS = """
import asyncio, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)
from tests.jail.sessions.conftest import sessions_in
from jail.sessions import SessionRequest
async def main():
    await sessions_in(Path(sys.argv[1])).open(SessionRequest("first", disk_mb=8))
try:
    asyncio.run(main())
except Exception as problem:
    print(type(problem).__name__, problem)
"""


async def started_with_few_files(folder: Path, most: int) -> str:
    """A hub that may have so many open, with a session `first`; what was said against it."""
    starts = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _STARTS, str(folder), str(most), stdout=subprocess.PIPE, cwd=ROOT
    )
    said, _ = await starts.communicate()
    return said.decode()


def hub_in(folder: Path) -> int:
    """Its process."""
    (process,) = processes_in(folder)
    return process


def end_hubs(folder: Path) -> None:
    """As an operator does, who also waits for the end."""
    for process in processes_in(folder):
        ended = os.pidfd_open(process)
        try:
            os.kill(process, signal.SIGTERM)
            wait_for(ended)
        finally:
            os.close(ended)


@contextlib.contextmanager
def strange_hub(folder: Path, says: bytes = b"") -> Iterator[None]:
    """It takes calls, says this to each, and hangs up."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / ".hub-strange.sock"))
        listening.listen()

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    with listening.accept()[0] as caller:
                        caller.settimeout(WITHIN)
                        if says and caller.recv(1 << 16):
                            caller.sendall(says)

        answering = threading.Thread(target=hang_up)
        answering.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            answering.join()


def wait_for(process: int, seconds: float = 100) -> None:
    """Until a process that is not our child has ended, by its pidfd."""
    import select

    ready, _, _ = select.select([process], [], [], seconds)
    assert ready, "it goes on"


@pytest.fixture(scope="module", params=["ns", "landlock", "none"])
def sessions(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, request.param)
    end_hubs(folder)


@pytest.fixture(scope="module")
def in_namespaces(tmp_path_factory: Any) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder)
    end_hubs(folder)


@pytest.fixture(scope="module")
def at_landlock(tmp_path_factory: Any) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, "landlock")
    end_hubs(folder)


@pytest.fixture(scope="module")
def at_none(tmp_path_factory: Any) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, "none")
    end_hubs(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """For a hub of one test's own."""
    yield tmp_path / "boxes"
    if (tmp_path / "boxes").exists():
        end_hubs(tmp_path / "boxes")
