"""Hostile images, and hostile root in a session from an image: nothing outside is reached."""

import os
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from jail.images import ImageBroken
from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from jail.isolation import probes
from jail.isolation.probes import Probe
from jail.isolation.selftest import goals
from jail.sessions import (
    CommandRequest,
    Finished,
    LocalSessions,
    Session,
    SessionRequest,
)
from tests.jail.abuses import LOOK_IN
from tests.jail.images.archives import Layer, oci
from tests.jail.images.roots import base, python
from tests.jail.sessions.conftest import end_hubs, sessions_in

pytestmark = [pytest.mark.timeout(300), pytest.mark.in_turns("sessions")]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give here")
LONGEST = 60.0
# Every session has a terminal of its own, which lies in that folder.
TERMINALS = {"see the host's terminals"}
# What root of a session may do: all of it is its own.
ITS_OWN = TERMINALS | {
    "run as root", "hold a capability", "write to the system", "change the interpreter",
}  # fmt: skip
# One for each right that root of a session has, and for those that it has not.
BEYOND = {
    "chown: give away a device of the host": "os.chown('/dev/null', 0, 0)",
    "chown: give away what init owns": "os.chown('/proc/1', 0, 0)",
    "fowner: change the mode of a device of the host": "os.chmod('/dev/null', 0o777)",
    "fowner: change the times of a device of the host": "os.utime('/dev/zero', (1, 1))",
    "setuid: become a user of the host": "os.setresuid(65536, 65536, 65536)",
    "setuid: become the fork server's user": "os.setresuid(65534 + 2, -1, -1)",
    "setgid: become a group of the host": "os.setresgid(65536, 65536, 65536)",
    "setgid: have a group of the host besides": "os.setgroups([65536])",
    "dac_override: read init's environment": "open('/proc/1/environ').read()",
    "dac_override: read init's memory": "open('/proc/1/mem', 'rb')",
    "dac_override: read init's mappings": "open('/proc/1/maps').read()",
    "dac_override: walk through init's root": "os.listdir('/proc/1/root/')",
    "dac_override: list what init has open": "os.listdir('/proc/1/fd')",
    "dac_override: write to init's files": "open('/proc/1/oom_score_adj', 'w').write('0')",
    "dac_override: add to init's users": "open('/proc/1/uid_map', 'w').write('70000 0 1')",
    "dac_override: change a kernel setting": "open('/proc/sys/kernel/core_pattern', 'w')",
    "dac_override: write to the devices' folder": "open('/dev/more', 'w')",
    "mknod": "os.mknod('/tmp/null', 0o20600, os.makedev(1, 3))",
    "mknod of a disk": "os.mknod('/tmp/disk', 0o60600, os.makedev(8, 0))",
    "setfcap": "os.setxattr('/bin/true', 'security.capability', bytes.fromhex('0100000200ffffff' "
    "'0000000000000000ffffffff'))",
    "trusted attributes": "os.setxattr('/tmp', 'trusted.overlay.opaque', b'y')",
    "sys_chroot": "os.chroot('/tmp')",
    "sys_admin: mount": "needs(libc.mount(b'x', b'/mnt', b'tmpfs', 0, b'') == 0)",
    "sys_admin: unmount": "needs(libc.umount2(b'/proc', 2) == 0)",
    "sys_ptrace": "needs(libc.ptrace(0x4206, 1, 0, 0) == 0)",
    "sys_nice": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
    "sys_resource": "resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))",
    "net_admin": "needs(open('/proc/sys/net/ipv4/ip_forward', 'w').write('1'))",
    "net_raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "gain rights by a setuid bit": "os.chmod('/usr/bin/id', 0o4755); os.setresgid(9, 9, 9); "
    "os.setresuid(1000, 1000, 1000); needs(os.popen('/usr/bin/id -u').read() == '0\\n')",
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> ImageSettings:
    return ImageSettings(images=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def store(settings: ImageSettings) -> ImageStore:
    return ImageStore.of(settings, 65534)


@pytest.fixture(scope="module")
def sessions(
    settings: ImageSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalSessions]:
    folder = tmp_path_factory.mktemp("sessions")
    yield sessions_in(folder, images=settings)
    end_hubs(folder)


@pytest_asyncio.fixture
async def with_python(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> AsyncIterator[Session]:
    store.add(oci(tmp_path / "python", [base(), python()], name="python", packed=bytes))
    session = await sessions.open(SessionRequest(image="python", ttl=LONGEST))
    yield session
    await session.end()


async def opened(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path, *layers: Layer
) -> Session:
    packed = [base(), *(layer.bytes() for layer in layers)]
    store.add(oci(tmp_path / "hostile", packed, name="hostile", packed=bytes))
    return await sessions.open(SessionRequest(image="hostile", ttl=LONGEST))


async def ran(session: Session, words: str, user: str = "") -> Finished:
    return await session.run(CommandRequest(["sh", "-c", words], user=user, timeout=LONGEST))


async def tried(session: Session, attacks: list[Probe], user: str = "") -> dict[str, str | None]:
    with goals() as goal:
        await session.write("/attack.py", probes.script(attacks, goal).encode())
        command = ["python3", "-I", "-S", "/attack.py"]
        done = await session.run(CommandRequest(command, user=user, timeout=LONGEST))
    assert done.exit.code == 0, done
    return probes.read(done.stdout)


def reached(found: dict[str, str | None]) -> set[str]:
    return {name for name, refusal in found.items() if refusal is None}


async def test_every_probe_is_refused_as_in_other_sessions(with_python: Session) -> None:
    attacks = probes.at("ns")
    found = await tried(with_python, attacks)
    assert found.keys() == {attack.name for attack in attacks}
    assert reached(found) <= ITS_OWN
    if os.getuid() == 0:
        assert reached(await tried(with_python, attacks, "agent")) <= TERMINALS
    assert (await ran(with_python, "ls /dev/pts")).stdout == b"ptmx\n"


@as_root
async def test_no_right_of_its_root_reaches_beyond_the_session(with_python: Session) -> None:
    before = os.stat("/dev/null")
    found = {}
    for name, code in BEYOND.items():  # each in a process of its own: some change who it is
        found |= await tried(with_python, [Probe(name, code)])
    assert found.keys() == set(BEYOND)
    assert reached(found) == set()
    assert os.stat("/dev/null") == before


@as_root
async def test_its_root_looks_into_no_call_that_is_under_way(with_python: Session) -> None:
    changes = with_python.watch("/tmp", user="root")
    await anext(changes)
    await with_python.write("/look.py", LOOK_IN.encode())
    look = CommandRequest(["python3", "-I", "-S", "/look.py"], user="root", timeout=LONGEST)
    done = await with_python.run(look)
    assert (done.exit.code, done.stdout) == (0, b"")
    await changes.aclose()


@as_root
async def test_its_root_can_kill_its_own_processes_alone(with_python: Session) -> None:
    other = await with_python.start(CommandRequest(["sleep", "60"], user="agent", kept=True))
    await other.close()
    done = await ran(with_python, "kill -9 1; kill -9 -1; echo")
    assert done.exit.signal or done.exit.code == 0
    assert (await ran(with_python, "echo well")).stdout == b"well\n"
    assert not await with_python.processes()


@as_root
async def test_its_root_reads_and_owns_what_is_closed_and_changes_no_layer(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    closed = Layer().file("closed", b"x", mode=0o000, uid=1000, gid=1000)
    session = await opened(sessions, store, tmp_path, closed)
    assert (await ran(session, "cat /closed; chown 0:0 /closed; chmod 755 /closed")).stdout == b"x"
    with store.use("hostile") as (_, folders):
        about = (folders[0] / "closed").stat()
        assert (about.st_uid, about.st_mode & 0o777) == (store_first() + 1000, 0)
    await session.end()


def store_first() -> int:
    return ImageSettings().image_first_uid


@pytest.mark.parametrize("target", ["/etc", "/", "../../../..", "/run/scratch", "nowhere"])
async def test_an_image_whose_folders_lead_elsewhere_gets_folders(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path, target: str
) -> None:
    made = Layer().entry(".wh.etc", tarfile.REGTYPE).entry(".wh.tmp", tarfile.REGTYPE)
    for name in ("proc", "dev", "etc2"):
        made.link(name, target)
    above = Layer().link("etc", target).link("tmp", target)
    session = await opened(sessions, store, tmp_path, made, above)
    done = await ran(session, "stat -c %F /proc /dev /etc /tmp; cat /etc/hostname; ls /proc/self")
    assert done.stdout.startswith(b"directory\n" * 4 + b"sandbox\n"), done
    assert b"status" in done.stdout
    await session.end()


@pytest.mark.parametrize("kind", ["fifo", "link", "endless", "huge", "numbers", "short"])
async def test_a_list_of_users_that_is_none_costs_its_session_alone(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path, kind: str
) -> None:
    made = Layer()
    match kind:
        case "fifo":
            made.entry("etc/passwd", tarfile.FIFOTYPE)
        case "link":
            made.link("etc/passwd", "/proc/1/environ")
        case "endless":
            made.link("etc/passwd", "/dev/zero").link("etc/group", "/dev/zero")
        case "huge":
            made.file("etc/passwd", b"a:" * (4 << 20))
        case "short":
            made.file("etc/passwd", b"root:x:0:0\nagent:x:7:7\n").file("etc/group", b"g:x:1\n")
        case "numbers":
            made.file(
                "etc/passwd", b"root:x:-1:99999999999999:::\nagent:x:\xc2\xb2:1:a:/:\n::::::\n"
            )
    session = await opened(sessions, store, tmp_path, made)
    for user in ("", "agent", "0:0", "7"):
        done = await ran(session, "id -u", user)
        assert done.exit.code == 0 or done.exit.why == "no_user", done
        assert done.stdout in (b"", b"0\n", b"7\n"), done
        assert done.stdout or kind != "short", done
    await session.write("/tmp/file", b"x", user="0")
    (entry,) = await session.list("/tmp", user="0")
    assert (entry.size, entry.user) == (1, "root" if kind == "short" else "0")
    await session.end()


async def test_setuid_bits_of_an_image_do_nothing(
    sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    made = Layer().file("usr/bin/up", Path("/usr/bin/id").read_bytes(), mode=0o6755)
    session = await opened(sessions, store, tmp_path, made)
    assert (await ran(session, "stat -c %a /usr/bin/up")).stdout == b"755\n"
    if os.getuid() == 0:
        assert (await ran(session, "up -u", "agent")).stdout == b"1000\n"
    await session.end()


async def test_attributes_of_overlays_come_from_no_tar_and_from_no_session(
    with_python: Session, sessions: LocalSessions, store: ImageStore, tmp_path: Path
) -> None:
    made = Layer()
    for name in ("opaque", "redirect", "whiteout", "metacopy"):
        member = tarfile.TarInfo("etc")
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        member.pax_headers = {f"SCHILY.xattr.user.overlay.{name}": "y"}
        made.tar.addfile(member)
    session = await opened(sessions, store, tmp_path, made)
    assert (await ran(session, "cat /etc/group")).exit.code == 0
    with store.use("hostile") as (_, folders):
        assert os.listxattr(folders[0] / "etc") == []
    await session.end()
    code = (
        "import os\\ntry: os.setxattr('/etc', 'user.overlay.opaque', b'y')\\nexcept OSError: pass"
    )
    done = await ran(with_python, f'python3 -ISc "$(printf "{code}")"')
    assert done.exit.code == 0, done
    child = await with_python.fork(SessionRequest(ttl=LONGEST))
    assert b"agent" in (await ran(child, "cat /etc/group")).stdout
    await child.end()


async def test_names_of_any_bytes_are_forked(with_python: Session) -> None:
    await ran(
        with_python, "mkdir /d; touch \"$(printf '/d/a\\nb')\" \"$(printf '/d/\\377')\" /d/.wh.x"
    )
    child = await with_python.fork(SessionRequest(ttl=LONGEST))
    assert (await ran(child, "ls -A /d | cat -v 2>/dev/null || ls -A /d")).stdout == (
        await ran(with_python, "ls -A /d | cat -v 2>/dev/null || ls -A /d")
    ).stdout
    await child.end()


def test_an_image_with_a_device_is_refused(store: ImageStore, tmp_path: Path) -> None:
    made = Layer().entry("dev/sda", tarfile.BLKTYPE)
    with pytest.raises(ImageBroken, match="device"):
        store.add(oci(tmp_path / "device", [made.bytes()], name="device"))
