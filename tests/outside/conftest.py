"""The wheel in an environment of its own, in the home of a user who is not root."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness import leash
from tests.harness.at_hand import oldest_server
from tests.harness.servers import until
from tests.harness.terminal import Terminal
from tests.harness.wheel import built

USER = 64123  # without a line in /etc/passwd, as in many a container
WITHIN = 300.0
COLOURS = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")
WAYS = ("from-tmp", "on-a-terminal", "redis-server-on-path", "young-machine")
# Its own signal at the death of its parent outlives the change of user.
BECOME = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--pdeathsig=keep"]


def pythons() -> list[Path]:
    """The oldest that we promise and the newest that is here: the folders they lie in."""
    found = {}
    for folder in (*Path.home().glob(".pyenv/versions/3.*"), Path(sys.base_prefix)):
        ask = [folder / "bin/python3", "-c", "import sys; print(sys.version_info[1])"]
        found[int(subprocess.check_output(ask))] = folder
    promised = [folder for minor, folder in sorted(found.items()) if minor >= 11]
    return list(dict.fromkeys([promised[0], promised[-1]]))


@dataclass
class Way:
    """How a user comes by it: from which folder, on which machine, with or without a terminal."""

    home: Path
    cwd: Path
    variables: dict[str, str]
    on_a_terminal: bool = False
    machine: tuple[str, ...] = ()
    server: str = "Valkey"

    def says(self, *words: str | Path) -> str:
        """What a command prints, that must do what it is for."""
        command = self._command(words)
        if self.on_a_terminal:
            with Terminal(command, os.environ) as terminal:
                code, said = terminal.ends(WITHIN), COLOURS.sub("", terminal.said)
        else:
            ran = _run(command)
            code, said = ran.returncode, ran.stdout
        _worked(command, code, said)
        return said

    @contextmanager
    def running(self, *words: str | Path, until_it_says: str) -> Iterator[None]:
        """A command beside the test, which a Ctrl-C ends in order."""
        command = self._command(words)
        try:
            if self.on_a_terminal:
                with Terminal(command, os.environ) as terminal:
                    terminal.until(until_it_says)
                    yield
                    terminal.press(Terminal.CTRL_C)
                    assert terminal.ends() == 0, terminal.said
            else:
                with _beside(command, self.home / "said.log", until_it_says):
                    yield
        except BaseException as failed:
            failed.add_note(f"beside it ran: {shlex.join(command)}")
            raise

    def file(self, name: str, text: str) -> Path:
        file = self.home / name
        file.write_text(text)
        return file

    def _command(self, words: tuple[str | Path, ...]) -> list[str]:
        """One that can be typed as it stands."""
        own = {
            "HOME": str(self.home), "LANG": "C.UTF-8", "TERM": "xterm-256color",
            "PATH": f"{self.home}/bin:{self.home}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        } | self.variables  # fmt: skip
        become = BECOME if os.getuid() == 0 else []
        set_to = (f"{name}={value}" for name, value in own.items())
        start = ["env", "-i", f"--chdir={self.cwd}", *set_to, *self.machine, *become]
        return [*start, "penstock", *map(str, words)]


@pytest.fixture(scope="session", params=pythons(), ids=lambda folder: folder.name)
def home(request: pytest.FixtureRequest) -> Iterator[Path]:
    # Below a folder of pytest's own no other user can be.
    around = Path(tempfile.mkdtemp(prefix="penstock-"))
    around.chmod(0o755)
    home = around / "the home of a user"
    home.mkdir()
    python = _open_to_all(request.param, around / "py") / "bin/python3"
    wheel = built(around)
    _must([str(python), "-m", "venv", str(home / "venv")])
    pip = [str(home / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _must([*pip, "install", f"{wheel}[all]", "numpy"])
    if os.getuid() == 0:
        os.chown(home, USER, USER)
    yield home
    shutil.rmtree(around)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, home: Path) -> Way:
    data = {"PENSTOCK_DATA_DIR": str(home / request.param)}
    match request.param:
        case "on-a-terminal":  # and from a folder in which this user may not write
            return Way(home, Path("/"), data, on_a_terminal=True)
        case "redis-server-on-path":
            _put_on_path(home)
            return Way(home, home, {"PENSTOCK_REDIS_SERVER": "redis-server"}, server="Redis")
        case "young-machine":
            return Way(home, home, data, machine=_started_just_now())
    return Way(home, Path(tempfile.gettempdir()), data)


def _open_to_all(python: Path, copy: Path) -> Path:
    """That Python, or a copy of one in a folder of root's alone, as root's pyenv is."""
    if os.getuid() != 0 or all(each.stat().st_mode & 0o001 for each in (python, *python.parents)):
        return python
    left = shutil.ignore_patterns("__pycache__", "site-packages", "test")
    for part in ("bin", "include", "lib"):
        shutil.copytree(python / part, copy / part, symlinks=True, ignore=left)
    # It would look for its library in the old folder, and then find the system's.
    was, now = (os.fsencode(folder / "lib") + b"\0" for folder in (python, copy))
    assert len(now) <= len(was), f"there is no room to name {copy} in a copy of {python}"
    for file in (*copy.glob("bin/python3*"), *copy.glob("lib/libpython*")):
        if file.is_file() and not file.is_symlink():
            file.write_bytes(file.read_bytes().replace(was, now.ljust(len(was), b"\0")))
    return copy


def _put_on_path(home: Path) -> None:
    server = shutil.which("redis-server", path="/usr/local/bin:/usr/bin:/bin") or oldest_server()
    if server is None:
        _missing("no redis-server on PATH, and no wheel has one for this platform")
    (home / "bin").mkdir(exist_ok=True)
    shutil.copy2(server, home / "bin/redis-server")


def _started_just_now() -> tuple[str, ...]:
    """What begins a command whose clock says 2 s."""
    back = 2 - int(time.monotonic())
    words = ["unshare", "--time", f"--monotonic={back}", f"--boottime={back}"]
    if os.getuid() != 0:
        words += ["--user", "--map-current-user"]
    tried = _run([*words, "true"])
    if tried.returncode != 0:
        _missing(f"this kernel moves no clock: {tried.stdout}")
    return tuple(words)


def _missing(what: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


@contextmanager
def _beside(command: list[str], log: Path, words: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = leash.start(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until(lambda: process.poll() is not None or words in log.read_text(), f"{words!r}")
        assert process.poll() is None, log.read_text()
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(WITHIN) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def _must(command: list[str], **more: Any) -> None:
    ran = _run(command, **more)
    _worked(command, ran.returncode, ran.stdout)


def _worked(command: list[str], code: int, said: str) -> None:
    assert code == 0, f"exit code {code} of: {shlex.join(command)}\n{said}"


def _run(command: list[str], **more: Any) -> "subprocess.CompletedProcess[str]":
    streams: dict[str, Any] = {"stdin": -3, "stdout": -1, "stderr": -2, "text": True}
    return subprocess.run(command, timeout=2 * WITHIN, check=False, **streams, **more)
