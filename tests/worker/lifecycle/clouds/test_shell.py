"""The script that runs a command for clouds, by shells of this machine."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from tests.worker.lifecycle.conftest import until
from worker.lifecycle import Command, FileRefused, SandboxRef
from worker.lifecycle.clouds import shell
from worker.lifecycle.clouds.cloud import Cloud

REF = SandboxRef("id", "name")
SHELLS = [["sh", "-c"], ["bash", "-lc"]]


class Here:
    """A folder of this machine as a sandbox. It counts what is asked of it."""

    def __init__(self, folder: Path, words: list[str], path: str = os.defpath) -> None:
        self.folder, self.words, self.path = folder, words, path
        self.lines = self.puts = self.gets = 0
        self.paths: set[str] = set()

    async def line(self, line: str, within: float) -> str:
        self.lines += 1
        process = await asyncio.create_subprocess_exec(
            *self.words, line, cwd=self.folder, env={"PATH": self.path, "HOME": str(self.folder)},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        return (await process.communicate())[0].decode()

    async def put(self, path: str, content: bytes) -> None:
        self.puts += 1
        self.paths.add(path)
        Path(path).write_bytes(content)

    async def get(self, path: str) -> bytes:
        self.gets += 1
        self.paths |= {path, str(Path(path).parent)}
        return Path(path).read_bytes()


class Files(Cloud):
    """The files of one folder."""

    def __init__(self, here: Here) -> None:
        super().__init__()
        self.here = here

    async def reach(self, id: str) -> Here:
        return self.here

    async def lives(self, id: str) -> bool:
        return True

    async def look_up(self, name: str) -> SandboxRef:
        return REF

    def inside(self, sandbox: Here) -> Here:
        return sandbox


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def here(request: pytest.FixtureRequest, tmp_path: Path) -> Here:
    return Here(tmp_path, request.param)


async def test_bytes_pass_as_they_are_in_one_line(here: Here) -> None:
    words = ["sh", "-c", "cat; printf '\\377\\000' >&2; exit 3"]
    ran = await shell.run(here, Command(words, stdin=b"\xff\x00 in"))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (3, b"\xff\x00 in", b"\xff\x00")
    assert (here.lines, here.puts, here.gets) == (1, 0, 0)


async def test_words_are_no_shells_words(here: Here) -> None:
    odd = ["$HOME", "a b", "'", '"', "*", "", "x\ny", "`id`", "-n", "é"]
    ran = await shell.run(here, Command(["printf", "%s|", *odd], env={"A": "it's $HOME"}))
    assert ran.stdout.decode() == "|".join(odd) + "|"
    said = await shell.run(here, Command(["sh", "-c", 'printf %s "$A"'], env={"A": "it's $HOME"}))
    assert said.stdout == b"it's $HOME"


async def test_what_is_long_goes_by_files_that_are_removed_again(here: Here) -> None:
    ran = await shell.run(
        here, Command(["sh", "-c", 'cat; printf %s "$1"', "sh", "w" * 100_000], stdin=b"i" * 50_000)
    )
    assert ran.stdout == b"i" * 50_000 + b"w" * 100_000
    assert (here.puts, here.gets) == (2, 2)
    assert here.paths
    assert not any(Path(path).exists() for path in here.paths)


async def test_a_command_out_of_time_ends_with_what_it_started(here: Here) -> None:
    words = ["sh", "-c", "echo said; sleep 61.7 & sleep 61.7"]
    ran = await shell.run(here, Command(words, 1))
    assert (ran.timed_out, ran.exit_code, ran.stdout) == (True, None, b"said\n")
    await until(lambda: not sleeping("61.7"))


async def test_the_clock_of_a_command_that_ended_is_stopped(here: Here) -> None:
    assert (await shell.run(here, Command(["true"], 3217))).exit_code == 0
    await until(lambda: not sleeping("3217"))


async def test_without_setsid_a_command_out_of_time_ends_all_the_same(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("sh", "base64", "mkdir", "mv", "sleep", "wc", "rm", "cat", "head"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    here = Here(tmp_path, ["/bin/sh", "-c"], str(tools))
    ran = await shell.run(here, Command(["sleep", "62.3"], 1))
    assert ran.timed_out
    await until(lambda: not sleeping("62.3"))


async def test_a_missing_folder_is_told_from_a_command_that_cannot_be_executed(here: Here) -> None:
    ran = await shell.run(here, Command(["true"], cwd="absent"))
    assert (ran.exit_code, ran.refused) == (126, "no_folder")
    ran = await shell.run(here, Command(["/tmp"]))
    assert (ran.exit_code, ran.refused) == (126, "not_executable")


async def test_files_larger_than_one_call_takes_are_refused(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "MOST", 10)
    with pytest.raises(FileRefused, match="at most 10 fit"):
        await Files(here).write_file(REF, "file", b"x" * 11)
    with pytest.raises(FileRefused, match="its input"):
        await shell.run(here, Command(["cat"], stdin=b"x" * 11))
    large = here.folder / "large"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(FileRefused, match="read it in parts"):
        await Files(here).read_file(REF, "large")


async def test_a_file_that_grows_too_large_as_it_is_read_is_refused(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tmp_path / "growing").write_bytes(b"small")
    size = (64 << 20) + 1
    (tools / "cat").write_text(
        f'#!/bin/sh\n/bin/cat "$@" || exit\ntest "$1" != -- || truncate -s {size} "$2"\n'
    )
    (tools / "cat").chmod(0o755)
    here = Here(tmp_path, ["/bin/sh", "-c"], f"{tools}:{os.defpath}")
    with pytest.raises(FileRefused, match="read it in parts"):
        await Files(here).read_file(REF, "growing")


async def test_a_shell_that_says_nothing_is_a_failure_and_no_result(here: Here) -> None:
    async def silent(line: str, within: float) -> str:
        return "welcome\n"

    here.line = silent  # type: ignore[method-assign]
    with pytest.raises(shell.NoAnswer, match=r"`base64` missing.*welcome"):
        await shell.run(here, Command(["true"]))


def sleeping(seconds: str) -> bool:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()]:
            return True
    return False
