"""The start-up self-test: every probe, in one jail, against this very process.

A feature check would say what the kernel offers; this says what a program can do.
"""

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jail import inside
from jail.errors import SandboxUnavailable
from jail.isolation import probes
from jail.isolation.levels import Level
from jail.limits import DEFAULTS
from jail.outcome import Outcome, Program

_FOLDERS_WORK = """
import os, tempfile
open("a", "w").write("x"); tempfile.NamedTemporaryFile().write(b"x")
"""
_LOOPBACK_WORKS = """
import socket
open("/tmp/a", "w").write("x"); open("/dev/shm/a", "w").write("x")
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
"""
LIMITS = replace(DEFAULTS, wall=30.0)
_LONGEST_HOME = 80  # of a socket's 107, less what is made in it


@dataclass(frozen=True)
class Finding:
    """The finding of one probe: refused, and how, or reached."""

    probe: str
    refused: str | None

    @property
    def contained(self) -> bool:
        return self.refused is not None


@contextlib.contextmanager
def goals() -> Iterator[dict[str, Any]]:
    """Things of this process that a program must not reach."""
    name = f"penstock-{secrets.token_hex(8)}"
    with (
        tempfile.TemporaryDirectory(prefix="penstock-", dir=_home()) as folder,
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX) as file,
        open(inside.__file__, "rb") as ours,  # which every program can read
    ):
        with contextlib.suppress(OSError):  # a file system without locks has none to be met
            fcntl.flock(ours, fcntl.LOCK_SH)
        Path(folder).chmod(0o755)  # else the refusal may be file permissions' alone
        for file_name in ("secret", "spare"):
            (Path(folder) / file_name).write_text(secrets.token_hex(8))
        abstract.bind(f"\0{name}")
        file.bind(f"{folder}/socket")
        abstract.listen()
        file.listen()
        yield {
            "port": port.getsockname()[1],
            "abstract": name,
            "socket": f"{folder}/socket",
            "secret": f"{folder}/secret",
            "spare": f"{folder}/spare",
            "locked": inside.__file__,
            "pid": os.getpid(),
            "began": Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19],
        }


def _home() -> str:
    """A folder in which a socket's path is not longer than the kernel allows."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_HOME else "/tmp"  # noqa: S108


def programs(goal: dict[str, Any], level: Level) -> list[Program]:
    """The programs of the self-test: the attacks, and the things that must work."""
    attack = probes.script(probes.at(level), goal)
    works = _FOLDERS_WORK + (_LOOPBACK_WORKS if level == "ns" else "")
    return [Program(attack, limits=LIMITS), Program(works, limits=LIMITS)]


def findings(output: bytes, level: Level) -> list[Finding]:
    """The probe table; a probe that said nothing counts as reached."""
    said = probes.read(output)
    return [Finding(probe.name, said.get(probe.name)) for probe in probes.at(level)]


async def check(
    run: Callable[[Program], Awaitable[Outcome]], level: Level = "ns", bare: Collection[str] = ()
) -> list[Finding]:
    """Run it; raises `SandboxUnavailable` if an attack got through or something does not work.
    In a folder that is `bare`, locks are the machine's, which is said elsewhere."""
    with goals() as goal:
        attack, works = [await run(program) for program in programs(goal, level)]
    if problem := _problem(works):
        raise SandboxUnavailable(f"what a program needs does not work: {problem}")
    if problem := _problem(attack):
        raise SandboxUnavailable(f"not every attack could be tried: {problem}")
    known = {probes.MEETS_LOCKS} if _is_below(inside.__file__, bare) else set()
    table = [found for found in findings(attack.stdout, level) if found.probe not in known]
    if reached := [found.probe for found in table if not found.contained]:
        raise SandboxUnavailable(f"a program could {', '.join(reached)}")
    return table


def _is_below(path: str, folders: Collection[str]) -> bool:
    """Whether it is one of them, or in one, by whatever links."""
    found = Path(path).resolve()
    return any(found.is_relative_to(Path(folder).resolve()) for folder in folders)


def _problem(outcome: Outcome) -> str:
    """The reason why it did not end as it should; empty if it did."""
    if outcome.status == "finished" and not outcome.return_code:
        return ""
    said = outcome.error or outcome.stderr.decode(errors="replace").strip()
    return said or f"{outcome.status}, exit code {outcome.return_code}"
