"""Sessions from images for an ordinary user: with one user of their own, and with many."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jail.conftest import ORDINARY_USER
from tests.jail.images.archives import oci
from tests.jail.images.roots import base
from tests.jail.sessions.conftest import IDLE, ROOT, end_hubs

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user"),
]
# Its mounts are nobody else's. A folder on the way to the interpreter may be closed to this user:
# then another one lies over it, which has the interpreter alone.
BECOME = """
own=$1 base=$2 closed=$3 numbers=$4; shift 4
if [ -n "$closed" ]; then
  mkdir -p kept && mount --bind "$base" kept
  mount -t tmpfs -o mode=755 none "$closed" && mkdir -p "$base" && mount --bind kept "$base"
fi
if [ -n "$numbers" ]; then
  echo "$own:$numbers:65536" >numbers
  mount --bind numbers /etc/subuid; mount --bind numbers /etc/subgid
  { cat /etc/passwd; echo "ordinary:x:$own:$own::/:/bin/sh"; } >users  # whom newuidmap asks for
  mount --bind users /etc/passwd
fi
exec setpriv --reuid=$own --regid=$own --clear-groups "$@"
"""
SESSION = """
import asyncio, json
from jail.sessions import CommandRequest, LocalSessions, SessionRequest

async def said(session, words, user=""):
    done = await session.run(CommandRequest(["sh", "-c", words], user=user, timeout=60))
    return done.stdout.decode() or done.stderr.decode() or done.exit.message

async def main():
    session = await LocalSessions().open(SessionRequest(image="task", ttl=120))
    found = {"root": await said(session, "id -u; echo x >/etc/own; mkdir /sub; rm /etc/hostname")}
    found["given away"] = await said(session, "touch /f; chown agent /f && stat -c %U /f")
    found["agent"] = await said(session, "id -un", user="agent")
    child = await session.fork(SessionRequest(ttl=120))
    found["fork"] = await said(child, "cat /etc/own; ls -d /sub; cat /etc/hostname || id -u")
    for each in (session, child):
        await each.end()
    print(json.dumps(found))

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """That this user may enter, as none of pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-ordinary-"))
    os.chown(folder, ORDINARY_USER, ORDINARY_USER)
    yield folder
    end_hubs(folder / "boxes")
    shutil.rmtree(folder)


def closed_on_the_way(path: Path) -> str:
    folders = (each for each in reversed(path.parents) if not each.stat().st_mode & 0o001)
    return str(next(folders, ""))


def session_of(folder: Path, numbers: str = "") -> dict[str, str]:
    """What commands say in a session of that user, whose machine grants it these numbers."""
    oci(folder / "oci", [base()], packed=bytes)
    source = Path(sys.base_prefix).resolve()
    own = {
        "HOME": str(folder), "PATH": f"{os.environ['PATH']}:/usr/sbin", "PYTHONPATH": str(ROOT),
        "PENSTOCK_IMAGES": str(folder / "images"), "PENSTOCK_SANDBOX_MEMORY_MB": "256",
        "PENSTOCK_LOCAL_SANDBOXES": str(folder / "boxes"),
        "PENSTOCK_SESSION_HUB_IDLE": str(IDLE), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    given = ["unshare", "--mount", "sh", "-euc", BECOME, "sh", str(ORDINARY_USER)]
    given += [str(source), closed_on_the_way(source), numbers, sys.executable]
    said = b""
    for words in (["-m", "penstock", "images", "add", "oci"], ["-c", SESSION]):
        done = subprocess.run([*given, *words], cwd=folder, env=own, capture_output=True)
        if b"Operation not permitted" in done.stderr and not done.stdout:
            pytest.skip(f"root may not do that here: {done.stderr.decode()}")
        assert done.returncode == 0, done.stderr.decode()
        said = done.stdout
    return dict(json.loads(said))


def test_a_user_without_numbers_has_sessions_with_one_user(folder: Path) -> None:
    """Nor has it a line in /etc/passwd, as in many a container."""
    found = session_of(folder)
    assert found["root"] == "0\n"
    assert "Invalid argument" in found["given away"]
    assert "this session has one user, root" in found["agent"]
    assert found["fork"].startswith("x\n/sub\n")


@pytest.mark.skipif(not shutil.which("newuidmap"), reason="this machine has no newuidmap")
def test_a_user_with_numbers_of_its_own_has_sessions_with_many(folder: Path) -> None:
    found = session_of(folder, numbers="1950000000")
    assert found["root"] == "0\n"
    assert found["given away"] == "agent\n"
    assert found["agent"] == "agent\n"
    assert found["fork"].startswith("x\n/sub\n")
    (layers,) = (folder / "images").glob("layers*")
    (root,) = layers.glob("*/root")
    assert (root / "home/agent").stat().st_uid == 1950000000 + 1000
