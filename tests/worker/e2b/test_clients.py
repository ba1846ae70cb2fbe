"""Slime's and Harbor's own code, as fetched, against our server: `make conformance` runs it.

`SLIME_SOURCE` names a checkout of slime, and `HARBOR_PYTHON` an interpreter that has Harbor.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jail.images.settings import ImageSettings
from jail.images.store import ImageStore
from tests.jail.images.archives import layer, oci
from tests.jail.images.roots import TOOLS, base
from tests.worker.e2b.serving import E2bServer
from tests.worker.tool.hosts import load_file

SLIME, HARBOR = os.environ.get("SLIME_SOURCE", ""), os.environ.get("HARBOR_PYTHON", "")
KEY, IMAGE = "sandbox/image", "task:1"
REPOSITORY = {"repo/code.txt": "one\n", "repo/check.sh": "grep -q two /repo/code.txt\n"}
# `git` stands for the real one, which the image of a task has: it keeps what it is configured with.
GIT = {"usr/bin/git": '#!/bin/sh\necho "$@" >> /etc/gitconfig\n'}

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give here"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trainer: str) -> Iterator[E2bServer]:
    folder = tmp_path_factory.mktemp("e2b")
    settings = {
        "PENSTOCK_E2B_IMAGE_METADATA": KEY, "PENSTOCK_E2B_NETWORK": trainer,
        "PENSTOCK_SESSION_NETWORK": f"public,{trainer}",
    }  # fmt: skip
    with E2bServer(folder, **settings) as found:
        tools = (*TOOLS, "gzip", "grep", "tail", "test", "setsid", "find", "sed", "env", "dirname")
        layers = [base(tools), layer(REPOSITORY | GIT)]
        store = ImageStore.of(ImageSettings(images=folder / "images"), 65534)
        store.add(oci(folder / "oci", layers, name=IMAGE, packed=bytes))
        yield found


@pytest.fixture
def surroundings(server: E2bServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The two variables by which any program finds this server, and its key."""
    given = {
        "E2B_API_KEY": server.options["api_key"], "E2B_API_URL": server.url,
        "E2B_SANDBOX_URL": server.url,
    }  # fmt: skip
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def slime(surroundings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    if not SLIME:
        pytest.skip("SLIME_SOURCE names no checkout of slime")
    monkeypatch.setenv("SLIME_AGENT_SANDBOX_IMAGE_METADATA_KEY", KEY)
    return load_file(Path(SLIME) / "slime" / "agent" / "sandbox.py", "_slime_sandbox")


async def test_slimes_agents_work_in_an_image(slime: Any, trainer: str, tmp_path: Path) -> None:
    (tmp_path / "tool").write_bytes(bytes(range(256)) * 5000)
    async with slime.E2BSandbox(IMAGE) as box:
        await box.exec("chmod 755 /usr/bin/git /repo/check.sh", check=True)
        await slime.ensure_agent_user(box, "/repo")
        assert (await box.exec("id -un; pwd", user="agent"))[1].split()[0] == "agent"
        assert await box.exec("sh /repo/check.sh", user="agent") == (1, "", "")
        await box.write_file("/repo/code.txt", "two\n", user="agent")
        assert (await box.exec("sh /repo/check.sh", user="agent"))[0] == 0
        await box.write_file("/tmp/tool", tmp_path / "tool")
        await box.write_file("/tmp/bytes", b"raw")
        assert (await box.exec("stat -c %s /tmp/tool /tmp/bytes"))[1].split() == ["1280000", "3"]
        assert await box.read_file("/repo/code.txt", user="agent") == "two\n"
        assert await box.read_file("/absent") == ""
        with pytest.raises(RuntimeError, match="exit=7"):
            await box.exec("exit 7", check=True)
        dials = (
            "at=${http_proxy#http://}; exec 3<>/dev/tcp/127.0.0.1/${at#*:};"
            f" printf 'GET http://{trainer}/ HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        )
        assert (await box.exec(dials))[1].endswith("trainer")


async def test_slimes_long_work_goes_on_without_its_command(slime: Any) -> None:
    async with slime.E2BSandbox(IMAGE) as box:
        await box.exec("mkdir -p /home/root", check=True)
        code, said = await slime.exec_and_wait(
            box, cmd="sleep 1; echo done", time_budget_sec=60, tag="work", workdir="/repo",
            want_output=True,
        )  # fmt: skip
        assert (code, said) == (0, "done\n")


async def test_slime_gives_an_unknown_image_up_at_once(slime: Any) -> None:
    async with asyncio.timeout(100):
        with pytest.raises(Exception, match="does not exist"):
            async with slime.E2BSandbox("absent:1"):
                pass


def test_harbors_environment_works_in_an_image(
    surroundings: dict[str, str], trainer: str, tmp_path: Path
) -> None:
    if not HARBOR:
        pytest.skip("HARBOR_PYTHON names no interpreter that has Harbor")
    script = Path(__file__).with_name("harbor_client.py")
    ran = subprocess.run(
        [HARBOR, "-I", script, IMAGE, tmp_path], env={**os.environ, **surroundings},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-4000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found == {
        "image": [0, "one\n"],
        "user": "root",
        "nobody": "65534",
        "code": 3,
        "cwd": "/repo\n",
        "env": "given\n",
        "uploaded": ["a.txt", "b.txt"],
        "downloaded": "two",
        "is_dir": [True, False],
        "allowed": "http://127.0.0.1",
        "dockerfile": [0, "built\n/work\n"],
    }
