"""Sessions from images: their files, users and environment, and what holds them."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from jail.images import ImageTooLarge, ImageUnknown
from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.sessions import (
    CommandRequest,
    Finished,
    LocalSessions,
    Session,
    SessionRefused,
    SessionRequest,
)
from tests.harness.remains import processes_in
from tests.harness.servers import until
from tests.jail.images.archives import Layer, layer, oci
from tests.jail.images.roots import base
from tests.jail.sessions.conftest import end_hubs, hub_in, sessions_in
from worker.lifecycle import SandboxSpec
from worker.lifecycle.local import LocalProvider
from worker.lifecycle.provider import Kind

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
many_users = pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give here")
LONGEST = 60.0


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ImageSettings:
    return ImageSettings(images=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def store(settings: ImageSettings, tmp_path_factory: pytest.TempPathFactory) -> ImageStore:
    store = ImageStore.of(settings, 65534)
    above = Layer().file("task/kept", b"kept").file("task/gone", b"gone").file("task/sub/old", b"o")
    store.add(oci(tmp_path_factory.mktemp("oci") / "task", [base(), above.bytes()], packed=bytes))
    return store


@pytest.fixture(scope="module")
def sessions(
    settings: ImageSettings, store: ImageStore, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, images=settings)
    end_hubs(folder)


@pytest_asyncio.fixture
async def session(sessions: LocalSessions) -> AsyncIterator[Session]:
    session = await sessions.open(SessionRequest(image="task", ttl=LONGEST))
    yield session
    await session.end()


async def ran(session: Session, words: str, user: str = "") -> Finished:
    return await session.run(CommandRequest(["sh", "-c", words], user=user, timeout=LONGEST))


async def said(session: Session, words: str, user: str = "") -> str:
    done = await ran(session, words, user)
    assert done.exit.code == 0, done
    return done.stdout.decode()


def add(
    store: ImageStore, tmp_path: Path, name: str, layers: list[bytes], **config: object
) -> None:
    store.add(oci(tmp_path / name, layers, name=name, packed=bytes, **config))


async def test_its_root_is_the_image_alone(session: Session) -> None:
    assert await said(session, "cat /task/kept; pwd; id -un") == "kept/root\nroot\n"
    seen = set((await said(session, "ls /")).split())
    assert seen == {
        "bin", "dev", "etc", "home", "lib", "lib64", "proc", "root", "sbin", "task", "tmp", "usr",
        "var",
    }  # fmt: skip
    assert (await session.info()).image == "task"


async def test_each_session_has_its_own_proc_dev_tmp_and_host_name(session: Session) -> None:
    assert await said(session, "echo x > /tmp/a; echo y > /dev/shm/b; cat /tmp/a /dev/shm/b") == (
        "x\ny\n"
    )
    assert await said(session, "cat /proc/sys/kernel/hostname /etc/hostname") == "sandbox\n" * 2
    assert "127.0.0.1 localhost" in await said(session, "cat /etc/hosts")
    assert (
        await said(session, "cat /etc/resolv.conf; echo > /dev/null; stat -c %a /tmp") == "1777\n"
    )


async def test_the_images_environment_user_and_folder_are_a_commands_own(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    about = {"Env": ["PATH=/usr/bin", "MODE=image", "MORE=image"], "WorkingDir": "/made/for/it"}
    user = {"User": "agent"} if os.getuid() == 0 else {}
    add(store, tmp_path, "configured", [base()], Entrypoint=["/bin/false"], **about, **user)
    session = await sessions.open(SessionRequest(image="configured", env={"MODE": "session"}))
    words = "echo $PATH $MODE $MORE; pwd; echo $HOME; id -un"
    assert await said(session, words) == (
        "/usr/bin session image\n/made/for/it\n"
        + ("/home/agent\nagent\n" if user else "/root\nroot\n")
    )
    await session.end()


@many_users
async def test_commands_run_as_the_user_that_they_name(session: Session) -> None:
    assert await said(session, "id -u; id -G; pwd", "agent") == "1000\n1000 2000\n/home/agent\n"
    assert await said(session, "id -u; id -G", "1000") == "1000\n1000 2000\n"
    # As with Docker: a group that is named is the only one.
    assert await said(session, "id -u; id -G", "agent:makers") == "1000\n2000\n"
    assert await said(session, "id -u; id -G", "agent:agent") == "1000\n1000\n"
    assert await said(session, "id -u; id -G", "4711:12") == "4711\n12\n"
    assert (await ran(session, "touch /etc/mine", "agent")).exit.code == 1
    entry = await session.write("notes", b"x", user="agent")
    assert (entry.path, entry.user, entry.group) == ("/home/agent/notes", "agent", "agent")


async def test_a_user_that_is_not_there_is_said_so(session: Session) -> None:
    done = await ran(session, "true", "nobody-here")
    assert (done.exit.code, done.exit.why) == (126, "no_user")
    assert "not in /etc/passwd" in done.exit.message
    with pytest.raises(OSError, match="not in /etc/passwd"):
        await session.stat("/", user="nobody-here")
    assert (await ran(session, "true", "0:70000")).exit.why == "no_user"


@many_users
async def test_root_of_a_session_makes_users_and_gives_files_away(session: Session) -> None:
    await said(session, "useradd -m dev && mkdir -p /w/sub && touch /w/sub/a && chown -R dev /w")
    assert await said(session, "stat -c %U /w/sub/a; id -un", "dev") == "dev\ndev\n"
    await said(session, "install -o dev -g makers /w/sub/a /w/b && tar cf /w.tar -C /w .")
    await said(session, "mkdir /x && tar xpf /w.tar -C /x")
    assert await said(session, "stat -c %U:%G /x/b /x/sub/a") == "dev:makers\ndev:root\n"
    words = "setpriv --reuid=dev --regid=makers --clear-groups id -un"
    assert await said(session, words) == "dev\n"


async def test_what_one_session_changes_no_other_sees(
    sessions: LocalSessions, session: Session, store: ImageStore
) -> None:
    await said(session, "rm -r /task/gone /task/sub; echo new > /task/kept; touch /etc/marked")
    other = await sessions.open(SessionRequest(image="task"))
    assert await said(other, "cat /task/kept /task/gone /task/sub/old; ls /etc") == (
        "keptgoneogroup\nhostname\nhosts\nnsswitch.conf\npasswd\nresolv.conf\n"
    )
    await other.end()
    with store.use("task") as (_, folders):
        assert (folders[0] / "task/kept").read_text() == "kept"


async def test_a_fork_has_what_was_written_removed_and_given_away(session: Session) -> None:
    await said(session, "rm -r /task/gone /task/sub; mkdir /task/sub; echo n > /task/sub/new")
    await said(session, "ln /task/sub/new /hard; ln -s /task /soft; chmod 750 /task/sub")
    if os.getuid() == 0:
        await said(session, "chown agent:makers /task/sub/new")
    children = [await session.fork(SessionRequest(ttl=LONGEST)) for _ in range(3)]
    for child in children:
        assert await said(child, "ls /task /task/sub; cat /soft/kept") == (
            "/task:\nkept\nsub\n\n/task/sub:\nnew\nkept"
        )
        assert await said(child, "stat -c '%a %h' /task/sub /hard") == "750 2\n644 2\n"
        assert (await child.info()).image == "task"
    if os.getuid() == 0:
        assert await said(children[0], "stat -c %U:%G /hard") == "agent:makers\n"
    await said(children[0], "rm /hard; echo mine > /task/kept")
    assert await said(children[1], "cat /hard /task/kept") == "n\nkept"
    assert await said(session, "cat /hard /task/kept") == "n\nkept"
    grandchild = await children[0].fork(SessionRequest(ttl=LONGEST))
    assert await said(grandchild, "cat /task/kept") == "mine\n"
    for each in (*children, grandchild):
        await each.end()


async def test_what_it_has_changed_is_a_layer_of_no_more_bytes_than_asked(
    session: Session, tmp_path: Path
) -> None:
    await said(session, "truncate -s 40M /hole")
    with pytest.raises(ImageTooLarge, match="PENSTOCK_IMAGE_MAX_GB"):
        await session.layer(tmp_path / "layer.tar", 1 << 20)
    assert (tmp_path / "layer.tar").stat().st_size <= 1 << 20
    await said(session, "rm /hole")
    await session.layer(tmp_path / "layer.tar", 1 << 20)


async def test_a_store_behind_a_link_serves_sessions(
    folder: Path, store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(store.folder)
    sessions = sessions_in(folder, images=ImageSettings(images=tmp_path / "link"))
    session = await sessions.open(SessionRequest(image="task"))
    assert await said(session, "cat /task/kept") == "kept"
    await session.end()


async def test_its_disk_limit_holds_for_the_whole_root(sessions: LocalSessions) -> None:
    session = await sessions.open(SessionRequest(image="task", disk_mb=4))
    done = await ran(session, "cat /dev/zero > /etc/large")
    assert b"No space left" in done.stderr
    assert (await session.usage()).disk <= 4 << 20
    await session.end()


@many_users
async def test_a_fork_is_whole_though_the_images_user_may_not_read_all(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    add(store, tmp_path, "plain", [base()], User="agent")
    session = await sessions.open(SessionRequest(image="plain", ttl=LONGEST))
    await said(session, "mkdir -m 700 /closed; echo x > /closed/a; chown agent /tmp", "root")
    child = await session.fork(SessionRequest(ttl=LONGEST))
    assert await said(child, "cat /closed/a; stat -c '%U %a' /closed /tmp", "root") == (
        "x\nroot 700\nagent 1777\n"
    )
    assert await said(child, "id -un") == "agent\n"
    for each in (session, child):
        await each.end()


async def test_the_lifecycle_starts_from_an_image_and_gives_up_on_an_unknown_one(
    sessions: LocalSessions,
) -> None:
    provider = LocalProvider(sessions=sessions)
    ref = await provider.create(SandboxSpec(image="task"), name="of-image", tags={}, ttl=LONGEST)
    assert (await provider.read_file(ref, "/task/kept")) == b"kept"
    await provider.terminate(ref.id)
    with pytest.raises(ImageUnknown) as refused:
        await provider.create(SandboxSpec(image="absent"), name="none", tags={}, ttl=LONGEST)
    assert provider.classify(refused.value).kind is Kind.FATAL


async def test_an_unknown_image_is_refused_by_its_name(sessions: LocalSessions) -> None:
    with pytest.raises(ImageUnknown, match="image 'nothing' does not exist"):
        await sessions.open(SessionRequest(image="nothing"))


@pytest.mark.parametrize("level", ["landlock", "none"])
async def test_a_level_without_mounts_refuses_images(
    level: str, folder: Path, settings: ImageSettings
) -> None:
    sessions = sessions_in(folder, level, images=settings)
    with pytest.raises(SessionRefused, match="PENSTOCK_SANDBOX_LEVEL=ns"):
        await sessions.open(SessionRequest(image="task"))


async def test_no_layer_is_deleted_under_a_session(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    add(store, tmp_path, "brief", [base(), layer({"a": "brief"})])
    session = await sessions.open(SessionRequest(image="brief"))
    store.remove("brief")
    assert (store.gc().layers, store.gc().in_use) == (0, 1)
    assert await said(session, "cat /a") == "brief"
    child = await session.fork(SessionRequest())  # from what is left without a name
    await session.end()
    assert store.gc().in_use == 1
    assert await said(child, "cat /a") == "brief"
    await child.end()
    assert store.gc().layers == 1


async def test_a_session_that_outlives_its_hub_still_holds_its_layers(
    folder: Path, settings: ImageSettings, store: ImageStore, tmp_path: Path
) -> None:
    add(store, tmp_path, "held", [base(), layer({"a": "held"})])
    sessions = sessions_in(folder, images=settings)
    await sessions.open(SessionRequest(image="held"))
    hub = hub_in(folder)
    servers = children_of(hub)
    for process in servers:  # neither may end its jails for now
        os.kill(process, signal.SIGSTOP)
    jails = [jail for process in servers for jail in children_of(process)]
    for process in jails:
        os.kill(process, signal.SIGSTOP)
    store.remove("held")
    os.kill(hub, signal.SIGKILL)
    until(lambda: not processes_in(folder), "the hub to end")
    assert store.gc().in_use == 1
    for process in (*servers, *jails):
        with contextlib.suppress(ProcessLookupError):  # one that had begun to end
            os.kill(process, signal.SIGCONT)
    async with asyncio.timeout(LONGEST):
        while not store.gc().layers:  # noqa: ASYNC110 - nothing says it
            await asyncio.sleep(0.05)


def children_of(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]
