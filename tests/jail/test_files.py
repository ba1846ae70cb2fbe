"""Files go in and come out by name, and no name or link leads anywhere else."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from jail.inside import files
from jail.inside.place import Place

from .conftest import MB, Run
from .swaps import SWAPS, never_another

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_files_come_with_their_folders_and_go_back_by_name(run: Run) -> None:
    code = "import os; os.makedirs('out'); open('out/b', 'wb').write(open('in/a', 'rb').read())"
    outcome = await run(
        code + "; open('/mnt/c', 'w').write('c')",
        files={"in/a": bytes(range(256))},
        fetch=["out/b", "/mnt/c", "missing"],
    )
    assert outcome.files == {"out/b": bytes(range(256)), "/mnt/c": b"c"}
    assert outcome.refused_files == {}


async def test_standard_input_is_exact_and_cannot_grow(run: Run) -> None:
    code = """
import os, sys
data = sys.stdin.buffer.read()
print(len(data), data[-1:])
try:
    os.write(0, b"more")
except OSError:
    print("sealed")
"""
    outcome = await run(code, stdin=b"x" * 3_000_000 + b"\n")
    assert outcome.stdout == b"3000001 b'\\n'\nsealed\n"


async def test_without_input_it_is_at_its_end(run: Run) -> None:
    assert (await run("import sys; print(repr(sys.stdin.read()))")).stdout == b"''\n"


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "/etc/cron.d/x", "/proc/self/mem", "/usr/x", "x/" * 1500 + "x"]
)
async def test_a_name_that_leads_out_is_refused(run: Run, name: str) -> None:
    outcome = await run("print(1)", files={name: b"x"})
    assert outcome.status == "refused"
    assert name in outcome.error


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("os.symlink('/etc/passwd', 'x')", "not in a folder"),
        ("os.symlink('/proc/1/environ', 'x')", "Permission denied"),
        ("os.symlink('/proc/1/mem', 'x')", "Permission denied"),
        ("os.symlink('/proc/self/fd/0', 'x')", ""),
        ("os.symlink('x', 'x')", "symbolic links"),
        ("os.symlink('/dev/zero', 'x')", "not a regular file"),
        ("os.mkfifo('x')", "not a regular file"),
        ("os.mkdir('x')", "not a regular file"),
        ("__import__('socket').socket(1).bind('x')", "No such device"),
        ("open('x', 'w').truncate(200 << 20)", "more than"),
        ("os.link('/usr/bin/env', 'x')", None),
    ],
)
async def test_what_stands_where_a_file_is_expected_is_refused_or_absent(
    run: Run, made: str, reason: str | None
) -> None:
    outcome = await run(f"import os\n{made}", fetch=["x"])
    assert outcome.files == {}
    assert (reason is None) == ("x" not in outcome.refused_files)
    assert (reason or "") in outcome.refused_files.get("x", "")


async def test_a_link_within_its_own_folders_is_followed(run: Run) -> None:
    outcome = await run("import os; open('a', 'w').write('1'); os.symlink('a', 'b')", fetch=["b"])
    assert outcome.files == {"b": b"1"}


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../../etc/passwd", "/dev/null", "/proc/1/status", "out/env", "", "."]
)
async def test_what_is_not_the_programs_own_is_not_given(run: Run, name: str) -> None:
    outcome = await run("import os; os.symlink('/usr/bin', 'out')", fetch=[name])
    assert outcome.files == {}
    assert name in outcome.refused_files


@pytest.mark.parametrize("swap", SWAPS)
async def test_a_file_that_is_swapped_by_a_child_left_behind_is_never_another(
    run: Run, swap: str
) -> None:
    """Files are read when nobody is left to change them."""
    never_another(await run(SWAPS[swap], fetch=["x", "d/passwd"]))


async def test_of_more_files_than_are_taken_along_none_is(tmp_path: Path) -> None:
    place = cast(Place, SimpleNamespace(home=str(tmp_path)))
    for number in range(files._MOST_MADE + 1):
        (tmp_path / f"A{number}.class").touch()
    made, refused = files.matching(place, ["*.class", "*.jar"])
    assert (made, list(refused)) == ([], ["*.class, *.jar"])
    (tmp_path / "A0.class").unlink()
    made, refused = files.matching(place, ["*.class", "*.jar"])
    assert (len(made), refused) == (files._MOST_MADE, {})


async def test_what_unpacks_to_more_than_the_disk_is_cut_off_there(run: Run) -> None:
    code = """
import zipfile, zlib
with zipfile.ZipFile("bomb", "w", zipfile.ZIP_DEFLATED) as bomb:
    with bomb.open("x", "w") as inner:
        for _ in range(64): inner.write(bytes(1 << 20))
try: zipfile.ZipFile("bomb").extractall("out")
except OSError as problem: print(problem.strerror)
"""
    outcome = await run(code, disk=32 * MB, fetch=["out/x"], fetched=1 * MB)
    assert outcome.stdout == b"No space left on device\n"
    assert "more than" in outcome.refused_files["out/x"]


async def test_fetched_files_are_capped_together(run: Run) -> None:
    code = "for name in 'abc': open(name, 'w').write('x' * 3_000_000)"
    outcome = await run(code, fetch=["a", "b", "c"], fetched=7 * MB)
    assert list(outcome.files) == ["a", "b"]
    assert "more than" in outcome.refused_files["c"]


async def test_a_full_disk_is_an_error_of_the_program(run: Run) -> None:
    code = """
f = open('/tmp/big', 'wb')
try:
    while True: f.write(bytes(1 << 20))
except OSError as problem: print(problem.strerror)
"""
    outcome = await run(code, disk=32 * MB)
    assert outcome.stdout == b"No space left on device\n"


async def test_running_out_of_inodes_harms_nobody_else(run: Run) -> None:
    code = """
n = 0
try:
    while True: open(f"/tmp/{n}", "w").close(); n += 1
except OSError as problem: print(problem.strerror, n < 1000)
"""
    outcome = await run(code, inodes=1000)
    assert outcome.stdout == b"No space left on device True\n"
    assert (await run("open('x', 'w').write('1')")).return_code == 0


async def test_a_file_beyond_the_size_limit_is_not_written(run: Run) -> None:
    code = "f = open('x', 'wb'); f.write(bytes(3 << 20)); f.flush()"
    outcome = await run(code, file_size=1 * MB)
    assert b"File too large" in outcome.stderr


async def test_open_files_are_limited(run: Run) -> None:
    outcome = await run("f = [open('/dev/null') for _ in range(1000)]", open_files=100)
    assert b"Too many open files" in outcome.stderr


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stdout", *(f"/dev/fd/{n}" for n in range(16))])
async def test_a_file_that_leads_to_what_init_has_open_is_refused(run: Run, name: str) -> None:
    """Its pipes for what the program prints, the request itself, the cgroup's files."""
    outcome = await run("print('true')", files={name: b"!false"})
    assert (outcome.status, outcome.stdout) == ("refused", b""), outcome
