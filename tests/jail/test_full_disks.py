"""Disk and inodes under landlock, on a real file system of 4 MB: what is held there, and what not.

At `ns` a program has a file system of its own size: see test_files.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from jail import Outcome
from jail.outcome import Program

from .conftest import MB, QUICK, STARTS
from .fenced import Fenced, fenced

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILL = """
try:
    with open("big", "wb", buffering=0) as file:
        while True: file.write(bytes(1 << 16))
except OSError as problem: print(problem.strerror)
"""
MANY = """
try:
    for n in range(10_000): open(str(n), "w").close()
except OSError as problem: print(problem.strerror)
"""


@pytest_asyncio.fixture(params=STARTS, scope="module", loop_scope="module")
async def small(request: pytest.FixtureRequest) -> AsyncIterator[Fenced]:
    async for sandbox in fenced("landlock", request.param, "size=4m,nr_inodes=500"):
        yield sandbox


@pytest.mark.parametrize("code", [FILL, MANY])
async def test_a_disk_that_a_program_has_filled_is_free_after_it(small: Fenced, code: str) -> None:
    outcome = await small.run(Program(code, limits=QUICK))
    assert outcome.stdout == b"No space left on device\n", outcome
    assert (await writes(small)).return_code == 0


STAY_FULL = """
import itertools, time
end, numbers = time.monotonic() + 3, itertools.count()
while time.monotonic() < end:
    try: open(str(next(numbers)), "w").close()
    except OSError: pass
"""
WHEN_FULL = """
full = False
while not full:
    try:
        open("one", "w").close()
        __import__("os").unlink("one")
    except OSError: full = True
"""


async def test_a_jail_made_while_the_disk_was_full_works_once_it_is_not(small: Fenced) -> None:
    filling = asyncio.create_task(small.run(Program(STAY_FULL, limits=QUICK)))
    for _ in range(3):  # one jail is made for each that is used
        await small.run(Program(WHEN_FULL, limits=replace(QUICK, wall=2)))
    await filling
    for _ in range(3):
        assert (await writes(small)).return_code == 0


async def test_what_one_program_may_write_is_not_held_to_its_limit(small: Fenced) -> None:
    """As the documentation says of this level; only a single file's size is."""
    beyond = Program(
        "for name in 'abc': open(name, 'wb').write(bytes(1 << 20))",
        limits=replace(QUICK, disk=1 * MB, inodes=1, file_size=1 * MB),
    )
    assert (await small.run(beyond)).return_code == 0
    larger = Program(
        "open('a', 'wb').write(bytes(2 << 20))", limits=replace(QUICK, file_size=1 * MB)
    )
    assert b"File too large" in (await small.run(larger)).stderr


async def test_a_disk_that_is_full_before_the_program_begins_is_our_failure(small: Fenced) -> None:
    outcome = await small.run(Program("print(1)", files={"a": bytes(8 << 20)}, limits=QUICK))
    assert outcome.status == "infrastructure"
    assert "No space left on device" in outcome.error
    assert (await writes(small)).return_code == 0


async def writes(sandbox: Fenced) -> Outcome:
    return await sandbox.run(Program("open('a', 'wb').write(bytes(1 << 20))", limits=QUICK))
