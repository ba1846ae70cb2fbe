"""Forks that share what their parent wrote, and those that cannot and have a copy."""

import asyncio
import contextlib
import os
import random
import signal
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.inside.levels import MOST
from jail.models import CodeRequest
from jail.sessions import (
    CommandRequest,
    LocalSessions,
    Output,
    Session,
    SessionRequest,
    SessionTrouble,
    Terminal,
)
from jail.sessions.settings import SessionSettings
from jail.sessions.shared import SharedSandbox
from jail.settings import SandboxSettings
from tests.jail.images.archives import Layer, oci
from tests.jail.images.roots import base

from .conftest import IDLE, children_of, end_hubs, hub_in, sessions_in, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
IMAGES = ["", "task"]
SHARED = 1 << 20  # bytes that a fork without a copy stays below
BUSY = CommandRequest(["sh", "-c", "echo up; exec sleep 600"], kept=True)


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: Any) -> Iterator[LocalSessions]:
    settings = ImageSettings(images=tmp_path_factory.mktemp("images"))
    below = Layer().file("tmp/w/old/a", b"a").file("tmp/w/old/b/c", b"c").file("tmp/w/d", b"d")
    layers = [base(), below.bytes()]
    store = ImageStore.of(settings, 65534)
    store.add(oci(tmp_path_factory.mktemp("oci") / "task", layers, name="task", packed=bytes))
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, images=settings)
    end_hubs(folder)


@pytest.fixture(params=IMAGES, ids=["plain", "image"])
async def session(sessions: LocalSessions, request: Any) -> AsyncIterator[Session]:
    opened = await sessions.open(SessionRequest(image=request.param))
    yield opened
    await opened.end()


async def said(session: Session, words: str) -> str:
    done = await session.run(CommandRequest(["sh", "-c", words]))
    assert done.exit.code == 0, done
    return done.stdout.decode()


async def is_copied(child: Session) -> bool:
    return (await child.usage()).disk >= SHARED


async def fork(parent: Session) -> Session:
    return await parent.fork(SessionRequest())


@contextlib.asynccontextmanager
async def copy(parent: Session) -> AsyncIterator[Session]:
    """A fork while something runs in the parent."""
    process = await parent.start(BUSY)
    await anext(process.events())
    child = await fork(parent)
    await process.signal(signal.SIGKILL)
    await process.wait()
    await process.close()
    yield child
    await child.end()


async def end(*sessions: Session) -> None:
    for each in sessions:
        await each.end()


async def tree(session: Session, top: str = "/tmp/w") -> dict[str, tuple[object, ...]]:
    """All that is there, but for times."""
    found = {}
    for entry in await session.list(top, depth=20):
        content = b""
        if entry.kind == "file":
            content = b"".join([piece async for piece in session.read(entry.path)])
        found[entry.path] = (entry.kind, entry.mode, entry.user, entry.target, content)
    return found


async def test_a_fork_has_the_environment_of_its_parent_and_then_its_own(
    sessions: LocalSessions,
) -> None:
    for image in IMAGES:
        parent = await sessions.open(SessionRequest(image=image, env={"A": "old", "B": "old"}))
        child = await parent.fork(SessionRequest(env={"B": "new"}))
        grandchild = await fork(child)
        assert await said(grandchild, "echo $A $B") == "old new\n"
        assert await said(parent, "echo $A $B") == "old old\n"
        await end(parent, child, grandchild)


async def test_forks_share_what_was_written_and_nothing_after(session: Session) -> None:
    await session.write("/tmp/large", bytes(range(256)) * (8 << 12))
    await session.write("/tmp/small", b"before")
    children = [await fork(session) for _ in range(3)]
    await session.write("/tmp/small", b"after")
    await children[0].write("/tmp/small", b"the child's own")
    await children[1].remove("/tmp/large")
    found = [await said(each, "cat /tmp/small") for each in (session, *children)]
    assert found == ["after", "the child's own", "before", "before"]
    assert [await is_copied(child) for child in children] == [False] * 3
    assert (await children[0].stat("/tmp/large")).size == 8 << 20
    assert (await session.stat("/tmp/large")).size == 8 << 20
    assert await is_copied(session)
    await end(*children)


async def test_what_is_shared_outlives_its_parent(session: Session) -> None:
    await session.write("/tmp/large", b"x" * (8 << 20))
    child = await fork(session)
    grandchild = await fork(child)
    await end(session, child)
    assert (await said(grandchild, "tail -c 3 /tmp/large || cat /tmp/large")).endswith("xxx")
    assert not await is_copied(grandchild)
    await end(grandchild)


async def test_a_fork_of_a_session_in_which_something_runs_is_copied(session: Session) -> None:
    await session.write("/tmp/large", b"x" * (8 << 20))
    async with copy(session) as child:
        assert await is_copied(child)
        again = await fork(child)
        assert not await is_copied(again)
        assert (await again.stat("/tmp/large")).size == 8 << 20
        await end(again)


async def test_a_program_that_was_prepared_and_not_needed_does_not_run_in_it(folder: Path) -> None:
    """A hub that ran a program makes its next jails with a process that waits to be one. A session
    has no use for it, and does not wait for its end."""
    sandbox = SandboxSettings(sandbox_memory_mb=256)
    kept = SessionSettings(local_sandboxes=str(folder), session_hub_idle=IDLE)

    def prepared() -> list[int]:
        servers = children_of(hub_in(folder))
        inits = [init for server in servers for init in children_of(server)]
        return [waiting for init in inits for waiting in children_of(init)]

    await SharedSandbox(sandbox, kept).run(CodeRequest(code="print(1)"))
    await until(prepared)
    for waiting in prepared():
        os.kill(waiting, signal.SIGSTOP)
    session = await LocalSessions(sandbox, kept).open(SessionRequest())
    used = await session.usage()
    assert (used.processes, used.memory) == (0, 0)
    await session.write("/tmp/large", b"x" * (8 << 20))
    child = await fork(session)
    assert not await is_copied(child)
    await end(child, session)


async def test_the_parent_keeps_its_limit_over_all_that_it_wrote(sessions: LocalSessions) -> None:
    for image in IMAGES:
        session = await sessions.open(SessionRequest(image=image, disk_mb=8))
        await session.write("/tmp/one", bytes(5 << 20))
        child = await session.fork(SessionRequest(disk_mb=8))
        with pytest.raises(OSError, match="No space left"):
            await session.write("/tmp/two", b"x" * (5 << 20))
        await child.write("/tmp/two", b"x" * (5 << 20))  # it has taken none of its own so far
        await end(session, child)


async def test_terminals_and_shared_memory_are_there_after_a_fork(session: Session) -> None:
    child = await fork(session)
    for each in (session, child):
        process = await each.start(
            CommandRequest(["sh", "-c", "stat -c %N /proc/self/fd/0"], terminal=Terminal(80, 24))
        )
        words = b""
        async for event in process.events():
            words += event.data if isinstance(event, Output) else b""
        assert b"/dev/pts/" in words
        await process.close()
        assert await said(each, "echo x > /dev/shm/here; cat /dev/shm/here") == "x\n"
    await end(child)


async def test_what_was_written_before_a_fork_is_moved_as_before(session: Session) -> None:
    await said(
        session, "mkdir -p /tmp/f/in; echo a > /tmp/f/in/a; ln -s a /tmp/f/in/l; mknod /tmp/f/p p"
    )
    await said(session, "chmod 750 /tmp/f/in; mkdir /tmp/full /tmp/empty; echo b > /tmp/full/b")
    before = await tree(session, "/tmp/f")
    child = await fork(session)
    for each in (session, child):
        with pytest.raises(OSError, match="not empty"):
            await each.move("/tmp/f", "/tmp/full")
        with pytest.raises(OSError, match="Not a directory"):
            await each.move("/tmp/f", "/tmp/full/b")
        assert (await each.move("/tmp/f", "/tmp/empty")).kind == "folder"
        found = await tree(each, "/tmp/empty")
        assert {path.replace("/empty", "/f"): what for path, what in found.items()} == before
        assert (await said(each, "ls /tmp")).split()[:2] == ["empty", "full"]
    await end(child)


async def test_however_deep_it_goes_all_is_there(session: Session) -> None:
    children = []
    for number in range(MOST + 4):
        await session.write(f"/tmp/n/{number}", b"%d" % number)
        children.append(await fork(session))
    seen = [len(await child.list("/tmp/n")) for child in children]
    assert seen == [number + 1 for number in range(MOST + 4)]
    deepest = await fork(children[-1])
    assert await said(deepest, f"cat /tmp/n/0 /tmp/n/{MOST + 3}") == f"0{MOST + 3}"
    await end(deepest, *children)


async def test_forks_and_commands_at_once_harm_each_other_nowhere(session: Session) -> None:
    await session.write("/tmp/kept", b"kept")
    names = [f"/tmp/at-once-{number}" for number in range(12)]
    written = [said(session, f"echo {name} > {name}; cat {name}") for name in names]
    forking = asyncio.gather(*(fork(session) for _ in names))
    assert await asyncio.gather(*written) == [f"{name}\n" for name in names]
    for child in await forking:
        assert await said(child, "cat /tmp/kept") == "kept"
        await end(child)
    assert await said(session, f"cat {' '.join(names)}") == "".join(f"{name}\n" for name in names)


def changes(draw: random.Random, steps: int) -> list[str]:
    """Commands that put, remove, replace, link and rename; some fail, in every session alike."""
    names = ["a", "b", "old", "old/a", "old/b", "old/b/c", "d", "new", "new/x", "new/old"]

    def one() -> str:
        name, other = draw.choice(names), draw.choice(names)
        return draw.choice([
            f"echo {draw.random()} > {name}", f"rm -rf {name}", f"mkdir -p {name}",
            f"rm -rf {name}; mkdir -p {name}", f"mv -T {name} {other}", f"ln {name} {other}",
            f"ln -sfn {other} {name}", f"chmod 7{draw.randint(0, 7)}5 {name}",
            f"rm -rf {name}; mkdir -p {name}; echo {draw.random()} > {name}/{other.split('/')[-1]}",
        ])  # fmt: skip

    return [f"cd /tmp/w; {{ {one()}; }} 2> /dev/null; true" for _ in range(steps)]


@pytest.mark.parametrize("image", IMAGES, ids=["plain", "image"])
@pytest.mark.parametrize("seed", range(12))
async def test_levels_are_seen_as_one_folder(
    sessions: LocalSessions, tmp_path: Path, image: str, seed: int
) -> None:
    draw = random.Random(seed)
    whole = await sessions.open(SessionRequest(image=image))
    levels = await sessions.open(SessionRequest(image=image))
    for session in (whole, levels):
        await said(session, "mkdir -p /tmp/w/old/b; cd /tmp/w; echo a > old/a; echo c > old/b/c")
    for words in changes(draw, 24):
        for session in (whole, levels):
            await said(session, words)
        if draw.random() < 0.4:
            child = await fork(levels)
            if draw.random() < 0.5:
                levels, child = child, levels  # to go on in the fork is the same
            await end(child)
    expected = await tree(whole)
    assert await tree(levels) == expected
    shared = await fork(levels)
    assert await tree(shared) == expected
    async with copy(levels) as copied:
        assert await tree(copied) == expected
    if image:
        found = []
        for number, session in enumerate((whole, levels)):
            path = tmp_path / f"{number}.tar"
            await session.layer(path, 1 << 24)
            with tarfile.open(path) as tar:
                found.append({entry.name: entry.type for entry in tar if "/.wh." not in entry.name})
        assert found[0].keys() == found[1].keys()
    await end(whole, levels, shared)


async def test_no_path_leads_to_what_is_shared(sessions: LocalSessions) -> None:
    session = await sessions.open(SessionRequest())
    await session.write("/tmp/kept", b"kept")
    child = await fork(session)
    for each in (session, child):
        assert await said(each, "ls -A /run/scratch /run/image") == "/run/image:\n\n/run/scratch:\n"
        words = "ls -d /proc/*/root/run/scratch/level-1 2> /dev/null || echo none"
        assert await said(each, words) == "none\n"
    await end(session, child)


@pytest.mark.parametrize(
    "attack",
    [
        "rmdir tmp; ln -s /run/scratch tmp", "rmdir tmp; ln -s / tmp", "rmdir tmp; touch tmp",
        "rm -rf *; touch ../level-1-work", "mkdir ../level-2 ../level-2-work ../level-3",
        "ln -s /proc ../level-2", "mv ../level-1 ../gone", "chmod 0 . ..",
        "mv tmp mnt; mv home-sandbox tmp", "mount --bind / tmp; umount /tmp",
    ],
)  # fmt: skip
async def test_a_hostile_parent_harms_nobody_but_itself(
    sessions: LocalSessions, attack: str
) -> None:
    session = await sessions.open(SessionRequest())
    await session.run(CommandRequest(["sh", "-c", f"cd /run/scratch/level-1 && {{ {attack}; }}"]))
    try:
        child = await fork(session)
    except (OSError, SessionTrouble):
        pass  # which is all that it can spoil
    else:
        await child.write("/tmp/own", b"own")
        words = "echo bad > /tmp/own; echo bad > /run/scratch/tmp/own; find / -name own -type f"
        await session.run(CommandRequest(["sh", "-c", words]))
        assert await said(child, "cat /tmp/own") == "own"
        await end(child)
    other = await sessions.open(SessionRequest())
    assert await said(other, "echo x > /tmp/x; cat /tmp/x") == "x\n"
    await end(session, other)


async def test_a_fork_has_the_modes_of_the_folders_themselves(sessions: LocalSessions) -> None:
    session = await sessions.open(SessionRequest())
    await said(session, "chmod 700 ~; chmod 711 /tmp; touch -d 2001-01-01 /mnt")
    child = await fork(session)
    words = "stat -c '%a %Y' ~ /tmp /mnt"
    assert await said(child, words) == await said(session, words)
    await end(child, session)


async def test_a_fork_leaves_a_link_in_the_place_of_tmp(sessions: LocalSessions) -> None:
    session = await sessions.open(SessionRequest(image="task"))
    await said(session, "rm -rf /tmp; ln -s /var /tmp")
    child = await fork(session)
    for each in (session, child):
        assert (await each.stat("/tmp")).target == "/var"
    await end(child, session)


async def test_a_copy_has_what_lies_in_a_folder_that_was_closed_before(
    sessions: LocalSessions,
) -> None:
    session = await sessions.open(SessionRequest())
    await said(session, "mkdir /tmp/d; echo a > /tmp/d/a; chmod 0 /tmp/d")
    child = await fork(session)
    await said(session, "chmod 755 /tmp/d")
    async with copy(session) as copied:
        assert await said(copied, "cat /tmp/d/a") == "a\n"
    await end(child, session)


async def test_no_mount_is_left_by_forks_of_an_idle_session(session: Session) -> None:
    found = []
    for _ in range(3):
        await end(await fork(session))
        found.append(len((await said(session, "cat /proc/self/mountinfo")).splitlines()))
    assert found == found[:1] * 3
