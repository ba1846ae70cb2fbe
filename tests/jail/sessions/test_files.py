"""Files of a session: put, had, listed, moved, watched and copied, with a program's own rights."""

import asyncio
import contextlib
import errno
import json
import os
from collections.abc import AsyncIterator

import pytest

from jail.inside import calls, folder_changes
from jail.sessions import (
    Change,
    CommandRequest,
    LocalSessions,
    Session,
    SessionGone,
    SessionRefused,
    SessionRequest,
    TooManySessions,
    wire,
)
from jail.sessions import session as session_module

from .conftest import sessions_in, strange_hub

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
WITHIN = 90  # seconds that nothing here takes


@pytest.fixture
async def session(sessions: LocalSessions) -> AsyncIterator[Session]:
    opened = await sessions.open(SessionRequest())
    yield opened
    await opened.end()


async def read(session: Session, path: str) -> bytes:
    return b"".join([piece async for piece in session.read(path)])


async def sh(session: Session, text: str) -> bytes:
    return (await session.run(CommandRequest(["sh", "-c", text]))).stdout


async def test_a_long_list_is_read_as_it_comes(session):
    made = "mkdir many; seq -f many/%05g 5000 | xargs touch"
    await sh(session, made)
    assert [entry.name for entry in await session.list("many")] == [
        f"{number:05}" for number in range(1, 5001)
    ]


async def test_a_list_that_is_too_large_is_refused_unread(session, monkeypatch):
    """A program chooses names and targets; what they cost is not its client's to bear."""
    monkeypatch.setattr(session_module, "_LISTED", 1 << 20)
    program = "import os; [os.symlink(b'\\xff' * 4000, str(n)) for n in range(100)]"
    await session.make_folder("links")
    await session.run(CommandRequest(["python3", "-c", program], cwd="links"))
    with pytest.raises(OSError, match="list less of them") as refused:
        await session.list("links")
    assert refused.value.errno == errno.E2BIG
    assert await sh(session, "echo lives") == b"lives\n"


async def test_a_list_says_what_is_there_though_not_all_may_be_read(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    found = {entry.path: entry for entry in await session.list("/proc", depth=2)}
    assert (found["/proc/1/cwd"].kind, found["/proc/1/cwd"].target) == ("link", "")
    await session.end()


async def test_a_file_comes_back_as_it_was(session):
    content = os.urandom(3 << 20)
    entry = await session.write("a/b/c", content, mode=0o750)
    assert (entry.kind, entry.size, entry.mode, entry.name) == ("file", len(content), 0o750, "c")
    assert await read(session, "a/b/c") == content
    await session.write("~/a/b/c", b"new")
    assert await read(session, entry.path) == b"new"
    assert await sh(session, "cat a/b/c") == b"new"
    for mode in (-1, 1 << 40):
        with pytest.raises(SessionRefused, match="mode is"):
            await session.write("a/b/c", b"newer", mode=mode)


async def test_a_stream_goes_up(session):
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000

    assert (await session.write("large", pieces())).size == 2_000_000


async def test_a_stream_that_breaks_off_is_an_error(session):
    async def pieces() -> AsyncIterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(WITHIN):
            await session.write("half", pieces())
    assert await sh(session, "echo well") == b"well\n"


async def test_a_call_whose_session_ends_says_that_it_is_gone(sessions):
    session, watched = await sessions.open(SessionRequest()), asyncio.Event()

    async def follow() -> None:
        async with contextlib.aclosing(session.watch(".")) as changes:
            async for _ in changes:
                watched.set()

    following, asked = asyncio.create_task(follow()), asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"half"
        asked.set()
        await asyncio.Event().wait()

    writing = asyncio.create_task(session.write("file", content()))
    async with asyncio.timeout(WITHIN):
        await asked.wait()
        await watched.wait()
        await session.end()
        for call in (writing, following):
            with pytest.raises(SessionGone, match="its session ended during the call"):
                await call


async def test_folders_deeper_than_any_path_are_removed_and_listed_so_far(session):
    nest = """
import os
os.mkdir("top"); os.chdir("top")
for _ in range(2000): os.mkdir("below"); os.chdir("below")
"""
    made = await session.run(CommandRequest(["python3", "-c", nest]))
    assert made.exit.code == 0, made
    assert len(await session.list("top", depth=5)) == 5
    with pytest.raises(OSError, match="list less depth"):
        await session.list("top", depth=3000)
    await session.write("other/kept", b"x")
    await session.run(CommandRequest(["ln", "-s", "../other", "top/link"]))
    await session.remove("top")
    with pytest.raises(FileNotFoundError):
        await session.stat("top")
    assert [entry.path.rpartition("/")[2] for entry in await session.list("other")] == ["kept"]


async def test_files_are_listed_moved_and_removed(session):
    assert await session.make_folder("one/two")
    assert not await session.make_folder("one/two")
    await session.write("one/two/file", b"x")
    await sh(session, "ln -s two one/link")
    found = await session.list("one", depth=2)
    assert [(e.name, e.kind) for e in found] == [
        ("link", "link"), ("two", "folder"), ("file", "file"),
    ]  # fmt: skip
    assert (await session.stat("one/link")).target == "two"
    assert [e.name for e in await session.list("one")] == ["link", "two"]
    assert (await session.move("one/two/file", "three/moved")).name == "moved"
    await session.remove("one")
    assert [e.name for e in await session.list(".")] == ["three"]
    await session.remove("three/moved")
    assert await session.list("three") == []


async def test_what_is_refused_is_refused_as_open_does(session):
    await session.write("folder/file", b"x")
    with pytest.raises(FileNotFoundError):
        await read(session, "absent")
    with pytest.raises(IsADirectoryError):
        await read(session, "folder")
    with pytest.raises(IsADirectoryError):
        await session.write("folder", b"x")
    with pytest.raises(NotADirectoryError):
        await session.write("folder/file/below", b"x")
    with pytest.raises(NotADirectoryError):
        await session.make_folder("folder/file")
    with pytest.raises(FileNotFoundError):
        await session.remove("absent")
    with pytest.raises(FileNotFoundError):
        await session.list("absent")
    with pytest.raises(OSError, match="Not a regular file"):
        await read(session, "/dev/null")
    with pytest.raises(OSError, match="null byte"):
        await session.stat("a\0b")
    assert await sh(session, "echo well") == b"well\n"


async def test_no_name_leads_out(session, sessions):
    """Of the machine's files a program's own rights decide, whoever asks."""
    if (await session.info()).isolation == "none":
        return
    secret = sessions.folder / "secret"
    secret.write_text("of the machine")
    await sh(session, f"ln -s {secret} link; ln -s /proc/1/root/etc/shadow other")
    for path in (str(secret), "link", "other", "/proc/1/environ", "/proc/1/mem"):
        with pytest.raises(OSError):
            await read(session, path)
    with pytest.raises(OSError):
        await session.write("link", b"changed")
    with pytest.raises(OSError):
        await session.write("/etc/passwd", b"changed")
    assert secret.read_text() == "of the machine"


@contextlib.asynccontextmanager
async def watching(session):
    """The changes in the folder `watched` from now on, and where it lies."""
    async with contextlib.aclosing(session.watch("watched", recursive=True)) as changes:
        async with asyncio.timeout(WITHIN):
            assert await anext(changes) is None
            yield changes, (await session.stat("watched")).path


async def test_changes_are_told_as_they_come(session):
    await session.make_folder("watched/inner")
    async with watching(session) as (changes, home):
        await sh(session, "mkdir watched/new")
        assert await anext(changes) == Change("create", f"{home}/new")
        await sh(session, "echo x > watched/inner/file; rm watched/inner/file")
        kinds = [(await anext(changes)).kind for _ in range(3)]
    assert kinds == ["create", "write", "remove"]


async def test_a_closed_folder_ends_no_watch_of_what_is_around_it(session):
    await session.make_folder("watched")
    await sh(session, "mkdir -m 0 watched/closed")
    async with watching(session) as (changes, home):
        await sh(session, "mkdir -m 0 watched/later; : > watched/file")
        assert await anext(changes) == Change("create", f"{home}/later")
        assert await anext(changes) == Change("create", f"{home}/file")
    with pytest.raises(PermissionError):
        await anext(session.watch("watched/closed"))


async def test_a_folder_that_shows_its_names_alone_hides_nothing_around_it(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    await sh(session, "mkdir -p top/names; touch top/file top/names/inner; chmod 444 top/names")
    found = [entry.name for entry in await session.list("top", depth=2)]
    assert found == ["file", "names"]
    with pytest.raises(PermissionError):
        await session.list("top/names")
    await session.end()


async def test_one_session_watches_so_many_folders_and_no_more(in_namespaces):
    session = await in_namespaces.open(SessionRequest())
    watches = [session.watch(".") for _ in range(16)]
    assert [await anext(watch) for watch in watches] == [None] * 16
    with pytest.raises(TooManySessions, match="watches 16 folders"):
        await anext(session.watch("."))
    await watches.pop().aclose()
    async with asyncio.timeout(WITHIN):
        while len(watches) < 16:
            with contextlib.suppress(TooManySessions):  # the one that was closed ends meanwhile
                watch = session.watch(".")
                assert await anext(watch) is None
                watches.append(watch)
    for watch in watches:
        await watch.aclose()
    await session.end()


async def test_a_machine_that_may_watch_no_more_says_so_as_one_that_is_full(folder, monkeypatch):
    def none(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(folder_changes, "opened", none)
    assert calls.prepared({"call": "watch"}, None) == []
    with pytest.raises(OSError, match="max_user_instances") as refused:
        calls._watch(path=".", recursive=False, kept=[])
    about = {"call": "watch"}
    shown = {"pid": 7, "tag": "", "command": about, "started": 0.0, "exit": None}
    said = {"errno": refused.value.errno, "why": refused.value.strerror}
    words = wire.packed({"stream": "stderr"}, json.dumps(said).encode())
    over = wire.packed({"exit": {"code": 1}})
    folder.mkdir()
    (folder / "mine").symlink_to(".hub-strange.sock")
    says = wire.packed({"process": shown}) + words + over
    with strange_hub(folder, says), pytest.raises(TooManySessions, match="max_user_instances"):
        await anext(sessions_in(folder).named("mine").watch("."))


async def test_nobody_finds_a_fork_before_it_is_whole(in_namespaces):
    session = await in_namespaces.open(SessionRequest(disk_mb=64))
    await session.write("large", bytes(1 << 20) + os.urandom(16 << 20))
    forking = asyncio.ensure_future(session.fork(SessionRequest(name="fork", disk_mb=64)))
    found = None
    while not (found or forking.done()):
        with contextlib.suppress(SessionGone):
            found = await in_namespaces.get("fork")
        await asyncio.sleep(0)
    child = found or await forking
    assert (await child.stat("large")).size == 17 << 20
    await forking
    for each in (session, child):
        await each.end()


async def test_what_takes_no_room_takes_none_in_a_fork(in_namespaces):
    session = await in_namespaces.open(SessionRequest(disk_mb=8))
    words = "for n in 1 2 3; do truncate -s 8M $n; done; echo end >> 1; echo x > small"
    await sh(session, words)
    child = await session.fork(SessionRequest(disk_mb=8))
    assert await sh(child, "stat -c '%s %n' *; tail -c 4 1") == (
        b"8388612 1\n8388608 2\n8388608 3\n2 small\nend\n"
    )
    for each in (session, child):
        await each.end()


async def test_a_fork_has_a_copy_of_the_files_and_no_process(session):
    await session.write("d/file", b"of the parent", mode=0o640)
    await sh(
        session, "ln -s file d/link; ln d/file d/again; mkfifo d/pipe; chmod 500 d; sleep 600 &"
    )
    child = await session.fork(SessionRequest(tags={"of": "it"}))
    try:
        entries = {e.name: e for e in await child.list("d")}
        assert {name: e.kind for name, e in entries.items()} == {
            "file": "file", "link": "link", "again": "file",
        }  # fmt: skip
        assert entries["file"].mode == 0o640
        assert await read(child, "d/link") == b"of the parent"
        await child.write("d/file", b"of the child")
        assert await read(session, "d/file") == b"of the parent"
        assert await child.processes() == []
        assert (await child.usage()).processes <= 1
    finally:
        await child.end()


async def test_a_full_disk_is_said_and_the_session_is_well(in_namespaces):
    session = await in_namespaces.open(SessionRequest(disk_mb=2))
    try:
        with pytest.raises(OSError, match="No space left"):
            await session.write("large", b"x" * (8 << 20))
        await session.remove("large")
        assert (await session.write("small", b"x" * (1 << 20))).size == 1 << 20
    finally:
        await session.end()
