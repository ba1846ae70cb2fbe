"""Templates of the unmodified E2B SDK: images of this machine, and what is built on them."""

import asyncio
import gzip
import io
import os
import tarfile
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from e2b import BuildException, FileType, Sandbox, SandboxException, Template
from packaging.version import Version

from jail.images import ImageBroken
from jail.images.archive import ImageConfig
from jail.images.settings import ImageSettings
from jail.images.store import BUILD, Image, ImageStore
from jail.inside.packing import entries
from jail.sessions import CommandRequest, Exit, Output, SessionGone
from tests.harness import patient
from tests.jail.images.archives import Layer, layer, oci
from tests.jail.images.roots import base
from tests.jail.sessions.conftest import end_hubs, sessions_in
from tests.worker.e2b.serving import KEY as KEY_OF_ALL
from tests.worker.e2b.serving import E2bServer
from worker.e2b.boxes import Boxes
from worker.e2b.problems import Problem
from worker.e2b.settings import E2bSettings
from worker.e2b.templates.copying import Copying
from worker.e2b.templates.rest import Build
from worker.e2b.templates.steps import Building, _followed

KEY = "task_image"
many_users = pytest.mark.skipif(os.getuid() != 0, reason="only root has users to give here")


builds = pytest.mark.skipif(
    Version(version("e2b")) < Version("2.19"), reason="this SDK builds at E2B's own address alone"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2bServer]:
    folder = tmp_path_factory.mktemp("e2b")
    with E2bServer(folder, PENSTOCK_E2B_IMAGE_METADATA=KEY) as server:
        store = ImageStore.of(ImageSettings(images=folder / "images"), 65534)
        store.add(
            oci(folder / "oci", [base(), layer({"task/a": "1"})], name="t:latest", packed=bytes)
        )
        yield server


def test_a_template_names_an_image(server: E2bServer) -> None:
    with Sandbox.create("t", timeout=60, **server.options) as box:
        assert box.commands.run("cat /task/a; id -un").stdout == "1root\n"
        assert box.get_info().template_id == "t"
        assert [one.name for one in box.files.list("/task")] == ["a"]


@many_users
def test_commands_and_files_have_the_images_users(server: E2bServer) -> None:
    with Sandbox.create("t:latest", timeout=60, **server.options) as box:
        box.commands.run("useradd -m dev && mkdir /w && chown -R dev /w", user="root")
        box.files.write("/w/notes", "x", user="dev")
        assert box.commands.run("stat -c %U /w/notes; id -un; pwd", user="dev").stdout == (
            "dev\ndev\n/home/dev\n"
        )
        with pytest.raises(SandboxException, match="not in /etc/passwd"):
            box.commands.run("true", user="absent")


def test_metadata_names_an_image_where_the_template_is_base(server: E2bServer) -> None:
    with Sandbox.create(timeout=60, metadata={KEY: "t"}, **server.options) as box:
        assert box.commands.run("cat /task/a", user="root").stdout == "1"


@pytest.mark.parametrize("about", [{"template": "absent"}, {"metadata": {KEY: "absent"}}])
def test_an_unknown_image_does_not_exist(server: E2bServer, about: dict[str, object]) -> None:
    with pytest.raises(SandboxException, match="'absent' does not exist"):
        Sandbox.create(timeout=60, **about, **server.options)  # type: ignore[arg-type]


def test_a_fork_starts_from_the_same_image(server: E2bServer) -> None:
    with Sandbox.create("t", timeout=60, **server.options) as box:
        box.files.write("/task/b", "2")
        for name in server.fork(box.sandbox_id, 3):
            with Sandbox.connect(name, **server.options) as child:
                assert child.commands.run("cat /task/a /task/b").stdout == "12"


@many_users
@builds
def test_a_template_is_built_step_by_step(server: E2bServer, tmp_path: Path) -> None:
    (tmp_path / "src/inner").mkdir(parents=True)
    (tmp_path / "src/inner/a.py").write_text("print('a')")
    (tmp_path / "src/b.py").write_text("b")
    (tmp_path / "src/link").symlink_to("b.py")
    (tmp_path / "one.txt").write_text("one")
    lines: list[str] = []
    template = (
        Template(file_context_path=tmp_path)
        .from_image("t")
        .set_envs({"STAGE": "built"})
        .set_workdir("/app")
        .copy("src", "/app/src", user="agent")
        .copy("one.txt", "two.txt", mode=0o600)
        .run_cmd("rm -r /task && mkdir /task && echo $STAGE > /task/new; pwd")
        .set_user("agent")
        .run_cmd("id -un; touch ~/mine")
        .set_start_cmd("echo started > /tmp/started; sleep 60", "[ -f /tmp/started ]")
    )
    built = Template.build(
        template, "mine:v1", on_build_logs=lambda entry: lines.append(entry.message),
        **server.options,
    )  # fmt: skip
    assert built.name == "mine:v1"
    assert {"agent", "/app"} <= set(lines)
    assert Template.exists("mine:v1", **server.options)
    with Sandbox.create("mine:v1", timeout=60, **server.options) as box:
        said = box.commands.run(
            "pwd; id -un; ls /task; cat /task/new src/inner/a.py src/link two.txt 2>&1; "
            "stat -c '%U %a' src/b.py two.txt /home/agent/mine; echo $STAGE; cat /tmp/started"
        ).stdout
        assert said == (
            "/app\nagent\nnew\nbuilt\nprint('a')bcat: two.txt: Permission denied\n"
            "agent 644\nroot 600\nagent 644\nbuilt\nstarted\n"
        )
    again: list[str] = []
    Template.build(
        template, "mine:v2", on_build_logs=lambda entry: again.append(entry.message),
        **server.options,
    )  # fmt: skip
    assert again.count("used again") == 5


@builds
def test_a_step_that_fails_fails_its_build_with_what_it_said(server: E2bServer) -> None:
    template = Template().from_image("t").run_cmd("echo this is why >&2; exit 3")
    with pytest.raises(BuildException, match=r"step 1 failed: exit code 3: this is why"):
        Template.build(template, "broken", **server.options)
    assert not Template.exists("broken", **server.options)


@builds
def test_nobody_names_a_template_as_builds_name_their_steps(server: E2bServer) -> None:
    with pytest.raises(BuildException, match="is no name of a template"):
        Template.build(Template().from_image("t"), f"{BUILD}mine", **server.options)


@pytest.mark.parametrize("damage", ["endless header", "cut"])
async def test_a_copied_archive_is_judged_as_a_layer_is(tmp_path: Path, damage: str) -> None:
    made = Layer()
    if damage == "cut":
        packed = gzip.compress(made.file("a", os.urandom(1 << 16)).bytes())[: 1 << 14]
    else:
        made.entry("a", tarfile.XHDTYPE, bytes(64 << 20))
        packed = gzip.compress(made.bytes(), 1)
    (tmp_path / "archive").write_bytes(packed)
    with pytest.raises((Problem, ImageBroken), match=r"cannot be read|a header of"):
        await Copying("a", "/a", "", "").into(Taking(), tmp_path / "archive")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["nothing", "a"])
async def test_a_copied_link_that_leads_nowhere_is_damage(tmp_path: Path, target: str) -> None:
    made = Layer().entry("a", tarfile.LNKTYPE, linkname=target)
    (tmp_path / "archive").write_bytes(made.bytes())
    with pytest.raises(Problem, match="the archive cannot be read"):
        await Copying("a", "/a", "", "").into(Taking(), tmp_path / "archive")  # type: ignore[arg-type]


async def placed(made: Layer, folder: Path) -> list[tuple[str, str, bytes]]:
    """What a COPY of it places, by one call."""
    (folder / "archive").write_bytes(made.bytes())
    taking = Taking()
    await Copying("a", "/a", "", "").into(taking, folder / "archive")  # type: ignore[arg-type]
    (packed,) = taking.placed
    with io.BytesIO(packed) as stream:
        return [
            (about["name"], about["kind"], stream.read(size)) for about, size in entries(stream)
        ]


async def test_an_archive_is_copied_by_one_call_however_many_files_it_has(tmp_path: Path) -> None:
    made = Layer()
    for number in range(300):
        made.file(f"a/{number}", b"x" * number)
    found = await placed(made, tmp_path)
    assert found == [(f"/a/{number}", "file", b"x" * number) for number in range(300)]


async def test_of_what_a_copied_archive_says_beside_its_files_nothing_is_kept(
    tmp_path: Path,
) -> None:
    with tarfile.open(tmp_path / "archive", "w", format=tarfile.PAX_FORMAT) as made:
        for number in range(40):
            member = tarfile.TarInfo(f"a/{number}")
            member.size, member.pax_headers = 1, {"comment": "y" * (1 << 20)}
            made.addfile(member, io.BytesIO(b"x"))
    tracemalloc.start()
    try:
        await Copying("a", "/a", "", "").into(Taking(), tmp_path / "archive")  # type: ignore[arg-type]
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


async def test_an_archive_of_many_empty_files_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each header has its bound, and not all of them together."""
    monkeypatch.setattr("jail.images.archive._MOST_JSON", 1 << 16)
    made = Layer()
    for number in range(300):
        made.file(f"a/{number}", b"")
    assert len(await placed(made, tmp_path)) == 300


async def test_an_archive_of_more_entries_than_a_layer_may_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.e2b.templates.copying.MOST_ENTRIES", 3, raising=False)
    most, more = Layer(), Layer()
    for number in range(3):
        most.file(f"a/{number}", b"")
        more.file(f"a/{number}", b"")
    assert len(await placed(most, tmp_path)) == 3
    with pytest.raises(Problem, match="more than 3 entries"):
        await placed(more.file("a/last", b""), tmp_path)


async def test_a_hard_link_is_copied_whole_and_so_is_what_follows_it(tmp_path: Path) -> None:
    made = Layer().file("a/one", b"both").hard_link("a/two", "a/one").file("a/z", b"last")
    assert await placed(made, tmp_path) == [
        ("/a/one", "file", b"both"), ("/a/two", "file", b"both"), ("/a/z", "file", b"last"),
    ]  # fmt: skip


@many_users
@builds
def test_many_files_are_copied_over_what_was_there(server: E2bServer, tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / "many").mkdir(exist_ok=True)
        (tmp_path / f"many/{number}").write_text(f"{number}\n")
    (tmp_path / "many/empty").mkdir()
    template = (
        Template(file_context_path=tmp_path)
        .from_image("t")
        .run_cmd(
            "mkdir /many && echo old > /many/7 && echo other > /target && ln -s /target /many/8"
        )
        .copy("many", "/many")
    )
    Template.build(template, "many", **server.options)
    with Sandbox.create("many", timeout=60, **server.options) as box:
        said = box.commands.run(
            "set -- /many/*; echo $#; cat /many/7 /many/8 /target /many/299"
        ).stdout
        assert box.files.get_info("/many/empty").type is FileType.DIR
    assert said == "301\n7\n8\n8\n299\n"


@builds
def test_a_file_that_cannot_be_placed_is_named(server: E2bServer, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    template = Template(file_context_path=tmp_path).from_image("t").copy("a", "/task/a/below")
    with pytest.raises(BuildException, match="/task/a/below: Not a directory"):
        Template.build(template, "wrong", **server.options)


@builds
def test_a_build_is_cancelled_with_its_template(server: E2bServer) -> None:
    key = {"x-api-key": KEY_OF_ALL}
    one = f"{server.url}/templates/long"
    build = patient.post(f"{server.url}/v3/templates", headers=key, json={"name": "long"}).json()
    steps = [{"type": "RUN", "args": ["echo begun; sleep 1000"]}]
    status = f"{one}/builds/{build['buildID']}/status"
    patient.post(
        f"{server.url}/v2/templates/long/builds/{build['buildID']}", headers=key,
        json={"fromImage": "t", "steps": steps},
    ).raise_for_status()  # fmt: skip
    while "begun" not in patient.get(status, headers=key).text:
        time.sleep(0.05)
    assert patient.request("DELETE", one, headers=key).status_code == 204
    ended = patient.get(status, headers=key).json()
    assert (ended["status"], ended["reason"]["message"]) == ("error", "it was cancelled")
    assert patient.request("DELETE", one, headers=key).status_code == 404
    assert patient.request("DELETE", f"{server.url}/templates/t", headers=key).status_code == 404


def built(server: E2bServer, name: str, *steps: str) -> str:
    """The id of a build on `t`, when it is done."""
    key = {"x-api-key": KEY_OF_ALL}
    asked = patient.post(f"{server.url}/v3/templates", headers=key, json={"name": name}).json()
    one = f"{server.url}/v2/templates/{name}/builds/{asked['buildID']}"
    given = {"fromImage": "t", "steps": [{"type": "RUN", "args": [step]} for step in steps]}
    patient.post(one, headers=key, json=given).raise_for_status()
    while True:
        status = patient.get(f"{one.replace('/v2', '', 1)}/status", headers=key).json()
        if status["status"] == "ready":
            return str(asked["buildID"])
        assert status["status"] in ("waiting", "building"), status
        time.sleep(0.05)


def test_a_tag_points_at_its_newest_build_and_each_build_can_be_started(server: E2bServer) -> None:
    key = {"x-api-key": KEY_OF_ALL}
    tags = f"{server.url}/templates/tagged/tags"
    assert patient.get(tags, headers=key).status_code == 404
    first = built(server, "tagged:v1", "echo one > /said")
    second = built(server, "tagged:v1", "echo two > /said")
    (said,) = patient.get(tags, headers=key).json()
    assert (said["tag"], said["buildID"]) == ("v1", second)
    for build, words in ((first, "one\n"), (second, "two\n")):
        with Sandbox.create(f"tagged:{build}", timeout=60, **server.options) as box:
            assert box.commands.run("cat /said", user="root").stdout == words
    untagged = built(server, "tagged", "echo three > /said")
    found = {one["tag"]: one["buildID"] for one in patient.get(tags, headers=key).json()}
    assert found == {"v1": second, "default": untagged}
    image = f"{server.url}/templates/tagged:v1"
    assert patient.request("DELETE", image, headers=key).status_code == 204
    for build in (first, second):
        with pytest.raises(SandboxException, match="does not exist"):
            Sandbox.create(f"tagged:{build}", timeout=60, **server.options)


def test_a_template_exists_under_any_tag(server: E2bServer) -> None:
    key = {"x-api-key": KEY_OF_ALL}
    store = ImageStore.of(ImageSettings(images=server.folder.parent / "images"), 65534)
    store.extend(store.find("t"), None, "tagged:v1", ImageConfig())
    exist, absent = ("t", "t:latest", "tagged", "tagged:v1", "base"), ("absent", "tagged:v2", BUILD)
    for name in (*exist, *absent):
        status = 200 if name in exist else 404
        found = patient.get(f"{server.url}/templates/aliases/{name}", headers=key)
        assert found.status_code == status, name
    # An image that was added and not built has no build to name.
    assert patient.get(f"{server.url}/templates/t/tags", headers=key).json() == []


def test_of_a_template_that_was_removed_no_build_is_left(server: E2bServer) -> None:
    key = {"x-api-key": KEY_OF_ALL}
    asked = {"name": "short", "tags": ["other"]}
    build = patient.post(f"{server.url}/v3/templates", headers=key, json=asked).json()["buildID"]
    for name, left in (("short", 200), ("short:other", 404)):
        one = f"{server.url}/templates/{name}"
        assert patient.request("DELETE", one, headers=key).status_code == 204
        assert patient.request("DELETE", one, headers=key).status_code == 404
        status = f"{server.url}/templates/short:other/builds/{build}/status"
        assert patient.get(status, headers=key).status_code == left


@pytest.mark.parametrize("steps", [5, "RUN x", ["RUN x"], [{"type": "RUN", "args": 5}]])
def test_what_is_no_list_of_steps_is_refused(server: E2bServer, steps: object) -> None:
    key = {"x-api-key": KEY_OF_ALL}
    build = patient.post(f"{server.url}/v3/templates", headers=key, json={"name": "s"}).json()
    answer = patient.post(
        f"{server.url}/v2/templates/s/builds/{build['buildID']}", headers=key,
        json={"fromImage": "t", "steps": steps},
    )  # fmt: skip
    assert answer.status_code == 400
    assert "steps must be a list" in answer.json()["message"]


async def test_a_sandbox_that_ends_before_it_is_ready_is_told_as_such(tmp_path: Path) -> None:
    settings = ImageSettings(images=tmp_path / "images")
    store = ImageStore.of(settings, 65534)
    store.add(oci(tmp_path / "oci", [base()], name="t", packed=bytes))
    store.extend(store.find("t"), None, "slow", ImageConfig(ready="sleep 1000"))
    boxes = Boxes(sessions_in(tmp_path / "boxes", images=settings), E2bSettings())
    try:
        with pytest.raises(Problem, match="ended before its template was ready") as refused:
            await boxes.create({"templateID": "slow", "timeout": 2})
    finally:
        end_hubs(tmp_path / "boxes")
    assert refused.value.status == 503


class Taking:
    """A session that takes whatever is written."""

    def __init__(self) -> None:
        self.placed: list[bytes] = []

    async def place(self, packed: AsyncIterator[bytes]) -> None:
        self.placed.append(b"".join([piece async for piece in packed]))


@builds
def test_a_template_on_an_unknown_image_does_not_exist(server: E2bServer) -> None:
    with pytest.raises(BuildException, match="'absent' does not exist"):
        Template.build(Template().from_image("absent"), "none", **server.options)


@many_users
@builds
def test_a_dockerfile_is_built_for_the_user_that_the_sdk_expects(server: E2bServer) -> None:
    text = "FROM t\nRUN echo made > /made\nWORKDIR /home/user/work\n"
    Template.build(Template().from_dockerfile(text), "docker", **server.options)
    with Sandbox.create("docker", timeout=60, **server.options) as box:
        assert box.commands.run("cat /made; id -un; pwd; touch ~/ok && ls ~").stdout == (
            "made\nuser\n/home/user/work\nok\nwork\n"
        )


class Printing:
    """A session whose command prints these pieces, and is its own process."""

    def __init__(self, pieces: int, piece: bytes, *end: Exit) -> None:
        self.pieces, self.piece, self.end = pieces, piece, end

    async def start(self, command: CommandRequest) -> "Printing":
        return self

    async def events(self) -> AsyncIterator[Output | Exit]:
        for _ in range(self.pieces):
            yield Output("stdout", self.piece)
        for end in self.end:
            yield end

    async def close(self) -> None: ...


async def test_a_step_that_prints_without_newlines_is_followed_in_pieces() -> None:
    said: list[str] = []
    printing = Printing(200, bytes(1 << 18), Exit(0, None, "", "", 0.1))
    await _followed(printing, CommandRequest(["x"]), said.append)  # type: ignore[arg-type]
    assert {len(line) for line in said} == {1 << 18}
    assert sum(map(len, said)) <= 1 << 20


async def test_a_step_whose_hub_dies_says_so() -> None:
    said: list[str] = []
    with pytest.raises(SessionGone, match="ended with its hub"):
        await _followed(Printing(1, b"half"), CommandRequest(["x"]), said.append)  # type: ignore[arg-type]
    assert said == ["half"]


def test_the_logs_of_a_build_with_many_steps_are_bounded() -> None:
    build = Build(["t"], "t:own")
    for _ in range(20):
        build.say("x" * (1 << 20))
    build.fail("this is why")
    assert sum(len(entry["message"]) for entry in build.entries) <= 4 << 20
    assert build.reason == {"message": "this is why", "logEntries": []}


async def test_each_session_of_a_build_starts_with_leave(tmp_path: Path) -> None:
    settings = ImageSettings(images=tmp_path / "images")
    store = ImageStore.of(settings, 65534)
    store.add(oci(tmp_path / "oci", [base()], name="t", packed=bytes))
    begun: list[str] = []

    @asynccontextmanager
    async def starting() -> AsyncIterator[None]:
        begun.append("leave")
        yield
        begun.append("opened")

    sessions = sessions_in(tmp_path / "boxes", images=settings)
    building = Building(sessions, store.find("t"), tmp_path, None, starting)
    try:
        for command in ("echo 1 > /a", "echo 2 > /b"):
            await building.step({"type": "RUN", "args": [command]}, False, begun.append)
    finally:
        end_hubs(tmp_path / "boxes")
    assert begun == ["leave", "opened"] * 2


async def test_a_build_that_is_cancelled_as_it_gives_names_gives_none_later(tmp_path: Path) -> None:
    settings = ImageSettings(images=tmp_path / "images")
    store = ImageStore.of(settings, 65534)
    store.add(oci(tmp_path / "oci", [base()], name="t", packed=bytes))
    sessions = sessions_in(tmp_path / "boxes", images=settings)
    building = Building(sessions, store.find("t"), tmp_path, None, nullcontext)
    loop, giving, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    extend = building._store.extend

    def slowly(*asked: Any) -> Image:
        loop.call_soon_threadsafe(giving.set)
        assert go_on.wait(100)
        return extend(*asked)

    building._store.extend = slowly  # type: ignore[method-assign]
    build = asyncio.create_task(building.finish(["mine"], "", ""))
    await giving.wait()
    build.cancel()
    loop.call_later(0.1, go_on.set)
    await asyncio.wait([build])
    assert build.cancelled()
    assert go_on.is_set()
    assert store.find("mine")  # a caller that waits for the build can remove it
