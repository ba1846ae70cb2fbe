"""Hostile paths: what a client names leads nowhere that its session could not go itself."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jail.sessions import CommandRequest, LocalSessions, Session, SessionRequest

pytestmark = [pytest.mark.timeout(120), pytest.mark.in_turns("sessions")]
SECRET = b"the host's own"


@pytest.fixture(scope="module")
def host() -> Iterator[Path]:
    """A folder of the host in which anybody may read and write."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-host-"))
    folder.chmod(0o777)
    (folder / "secret").write_bytes(SECRET)
    (folder / "secret").chmod(0o666)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def session(sessions: LocalSessions) -> AsyncIterator[Session]:
    found = await sessions.open(SessionRequest(ttl=120))
    yield found
    await found.end()


async def isolated(session: Session) -> bool:
    return (await session.info()).isolation != "none"


async def content(session: Session, path: str) -> bytes:
    return b"".join([piece async for piece in session.read(path)])


WAYS = [
    "{}", "../../../../../../../..{}", "/proc/self/root{}", "/proc/1/root{}", "/proc/self/cwd/..{}",
    "here{}", "/proc/thread-self/root{}", "//{}", "./.././../..{}",
]  # fmt: skip


async def test_no_path_leads_to_the_host(session: Session, host: Path) -> None:
    """By `..`, by links that the session has made, by /proc."""
    if not await isolated(session):
        return
    await session.run(CommandRequest(["ln", "-s", "/", "here"]))
    for way in WAYS:
        at = way.format(host)
        with pytest.raises(OSError):
            await content(session, f"{at}/secret")
        for work in (
            session.write(f"{at}/new", b"x"),
            session.write(f"{at}/secret", b"x"),
            session.move(f"{at}/secret", "mine"),
            session.remove(f"{at}/secret"),
            session.make_folder(f"{at}/folder"),
        ):
            try:
                await work
            except OSError:
                continue  # else it lies in the session's own files
    assert {path.name for path in host.iterdir()} == {"secret"}
    assert (host / "secret").read_bytes() == SECRET


async def test_a_folder_that_is_swapped_while_files_come_leads_nowhere(
    session: Session, host: Path
) -> None:
    if not await isolated(session):
        return
    swap = f"while :; do mkdir f; rm -rf f; ln -s {host} f; rm -f f; done"
    swapping = await session.start(CommandRequest(["sh", "-c", swap], timeout=60))
    for n in range(30):
        for work in (session.write(f"f/new-{n}", b"x" * 1000), session.remove("f")):
            try:
                await work
            except OSError:
                continue  # it was a link, a folder or absent in that moment
    await swapping.signal(9)
    await swapping.wait()
    await swapping.close()
    assert {path.name for path in host.iterdir()} == {"secret"}


async def test_what_is_no_file_is_refused_and_holds_nobody_up(session: Session) -> None:
    await session.run(CommandRequest(["mkfifo", "pipe"]))
    async with asyncio.timeout(100):
        for path in ("pipe", "/dev/zero", "/dev/random", "/proc/self/fd/0", "/proc/self/fd/1", "."):
            with pytest.raises(OSError):
                await content(session, path)
        with pytest.raises(OSError):
            await session.write("pipe", b"x")
    assert await session.run(CommandRequest(["true"]))


@pytest.mark.parametrize(
    "path", ["", "x" * 256, "d/" * 3000, "x\0y", "\ud800", "~nobody-of-that-name\0"],
    ids=["empty", "long", "deep", "a zero byte", "half a character", "an account"],
)  # fmt: skip
async def test_names_that_no_file_has_are_refused(session: Session, path: str) -> None:
    for work in (content(session, path), session.write(path, b"x"), session.move("a", path)):
        with pytest.raises((OSError, ValueError)):
            await work
    assert (await session.run(CommandRequest(["true"]))).exit.code == 0


async def test_a_file_that_grows_under_its_reader_ends(session: Session) -> None:
    grow = "while :; do head -c 100000 /dev/zero >> big; done"
    growing = await session.start(CommandRequest(["sh", "-c", grow], timeout=60))
    await session.write("small", b"x")
    taken = 0
    while not taken:
        with contextlib.suppress(FileNotFoundError):  # not yet
            async with contextlib.aclosing(session.read("big")) as pieces:
                async for piece in pieces:
                    taken += len(piece)
                    if taken > 1 << 20:
                        break
    await growing.signal(9)
    await growing.wait()
    await growing.close()
    assert await content(session, "small") == b"x"


async def test_links_in_a_listing_are_shown_and_not_followed(session: Session, host: Path) -> None:
    await session.run(CommandRequest(["ln", "-s", str(host), "away"]))
    entry = await session.stat("away")
    assert (entry.kind, entry.target) == ("link", str(host))
    assert [one.kind for one in await session.list(".", depth=3) if one.name == "away"] == ["link"]
    await session.remove("away")
    assert os.path.isdir(host)
