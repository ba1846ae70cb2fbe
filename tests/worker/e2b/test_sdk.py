"""The unmodified E2B SDK against this machine's sandboxes."""

import asyncio
import base64
import hashlib
import json
import threading
import time
import uuid
from datetime import timedelta, timezone
from importlib.metadata import version

import httpx
import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b_code_interpreter import Sandbox as CodeSandbox
from packaging.version import Version

from tests.harness import patient
from tests.worker.e2b.serving import E2bServer
from worker.e2b.boxes import moment
from worker.e2b.wire import frame, parsed

try:
    from e2b import FileNotFoundException
except ImportError:  # 2.7 has one for all that is not found
    FileNotFoundException = NotFoundException

SDK, INTERPRETER = Version(version("e2b")), Version(version("e2b-code-interpreter"))
needs_recent = pytest.mark.skipif(Version("2.40") > SDK, reason="this SDK has a defect or a gap")
interpreter = pytest.mark.skipif(
    Version("2.9") > INTERPRETER, reason="this interpreter's SDK needs a domain"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with E2bServer(tmp_path_factory.mktemp("e2b"), PENSTOCK_SESSION_DISK_MB="64") as found:
        yield found


@pytest.fixture(scope="module")
def shared(server):
    """A sandbox for tests that change nothing in it that others could notice."""
    with Sandbox.create(**server.options) as box:
        yield box


@pytest.fixture
def box(server):
    found = Sandbox.create(**server.options)
    yield found
    found.kill()


# Sandboxes


def test_a_sandbox_is_created_used_and_killed(server):
    box = Sandbox.create(
        timeout=60, metadata={"run": "a b"}, envs={"GREETING": "hello"}, **server.options
    )
    assert box.is_running()
    assert box.commands.run("echo $GREETING").stdout == "hello\n"
    info = box.get_info()
    assert info.metadata == {"run": "a b"}
    assert info.template_id == "base"
    assert 50 < (info.end_at - info.started_at).total_seconds() <= 61
    assert box.kill()
    assert not box.is_running()
    assert not box.kill()


def test_another_client_connects_by_the_id(server, box):
    box.files.write("/tmp/note", "from the first")
    other = Sandbox.connect(box.sandbox_id, **server.options)
    assert other.files.read("/tmp/note") == "from the first"


def test_names_that_are_no_utf_8_are_listed(box):
    program = (
        "import os; os.mkdir('/tmp/x'); os.symlink(b'\\xff', '/tmp/x/link'); "
        "open(b'/tmp/x/\\xfe', 'w')"
    )
    box.commands.run(f'python3 -c "{program}"')
    # Older SDKs leave links out.
    assert [one.name for one in box.files.list("/tmp/x") if one.name != "link"] == ["\ufffd"]


def test_a_sandbox_that_is_gone_is_told_as_such(server):
    box = Sandbox.create(**server.options)
    box.kill()
    with pytest.raises(NotFoundException):
        Sandbox.connect(box.sandbox_id, **server.options)
    with pytest.raises(TimeoutException, match="not found"):
        box.commands.run("true")
    with pytest.raises((TimeoutException, SandboxException)):
        box.files.read("/tmp/x")


def test_its_time_is_prolonged_and_runs_out(server):
    box = Sandbox.create(timeout=60, **server.options)
    box.set_timeout(2)
    deadline = time.monotonic() + 100
    while box.is_running():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    kept = Sandbox.create(timeout=60, **server.options)
    kept.set_timeout(600)
    info = kept.get_info()
    assert (info.end_at - info.started_at).total_seconds() > 500
    kept.kill()


def test_sandboxes_are_listed_by_metadata_in_pages(server):
    run = uuid.uuid4().hex
    made = [
        Sandbox.create(metadata={"run": run, "kind": "x & y"}, **server.options) for _ in range(3)
    ]
    from e2b import SandboxQuery

    pages = Sandbox.list(
        query=SandboxQuery(metadata={"run": run, "kind": "x & y"}), limit=2, **server.options
    )
    first = pages.next_items()
    assert len(first) == 2
    assert pages.has_next
    found = first + pages.next_items()
    assert {one.sandbox_id for one in found} == {box.sandbox_id for box in made}
    assert not pages.has_next
    other = Sandbox.list(query=SandboxQuery(metadata={"run": "none"}), **server.options)
    assert other.next_items() == []
    for box in made:
        box.kill()


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_sandboxes_that_are_ended_page_by_page_are_all_ended(server, order):
    from e2b import SandboxQuery

    run = uuid.uuid4().hex
    made = [Sandbox.create(metadata={"run": run}, **server.options) for _ in range(4)]
    about = {"metadata": f"run={run}", "limit": 1, "order": order}
    address, key = f"{server.url}/v2/sandboxes", {"x-api-key": server.options["api_key"]}
    ended = []
    while "nextToken" not in about or about["nextToken"]:
        answer = httpx.get(address, params=about, headers=key).raise_for_status()
        for one in answer.json():
            ended.append(one["sandboxID"])
            assert Sandbox.kill(ended[-1], **server.options)
        about["nextToken"] = answer.headers.get("x-next-token", "")
    names = [box.sandbox_id for box in made]
    assert ended == (names if order == "asc" else names[::-1])
    left = Sandbox.list(query=SandboxQuery(metadata={"run": run}), **server.options)
    assert left.next_items() == []


def test_a_list_keeps_to_metadata_whose_text_is_empty(server, box):
    from e2b import SandboxQuery

    with Sandbox.create(metadata={"stage": ""}, **server.options) as one:
        pages = Sandbox.list(query=SandboxQuery(metadata={"stage": ""}), **server.options)
        assert [found.sandbox_id for found in pages.next_items()] == [one.sandbox_id]


def test_a_list_begins_after_a_moment_in_any_time_zone(server, box):
    started = box.get_info().started_at
    address, key = f"{server.url}/v2/sandboxes", {"x-api-key": server.options["api_key"]}
    for hours in (-7, 0, 9):
        zone = timezone(timedelta(hours=hours))
        for seconds, there in ((-1, True), (1, False)):
            after = (started + timedelta(seconds=seconds)).astimezone(zone).isoformat()
            answer = httpx.get(address, params={"startedAfter": after}, headers=key)
            listed = [one["sandboxID"] for one in answer.raise_for_status().json()]
            assert (box.sandbox_id in listed) == there
    answer = httpx.get(address, params={"startedAfter": "yesterday"}, headers=key)
    assert answer.status_code == 400


@pytest.mark.parametrize("token", ["MTAw", "é", "bm8gbmFtZQ=="])
def test_a_page_that_no_list_named_is_refused(server, token):
    address, key = f"{server.url}/v2/sandboxes", {"x-api-key": server.options["api_key"]}
    answer = httpx.get(address, params={"nextToken": token}, headers=key)
    assert answer.status_code == 400


def test_a_wrong_key_is_refused(server):
    with pytest.raises(AuthenticationException):
        Sandbox.create(**server.options | {"api_key": f"e2b_{'0' * 40}"})


def test_a_token_opens_its_own_sandbox_alone(server, shared, box):
    headers = {"e2b-sandbox-id": shared.sandbox_id, "e2b-sandbox-port": "49983"}
    for token in ("", "x", box._envd_access_token):
        answer = patient.get(
            f"{server.url}/files?path=/etc/passwd", headers=headers | {"x-access-token": token}
        )
        assert answer.status_code == 401
    assert patient.get(f"{server.url}/health", headers=headers).status_code == 204


def test_a_restart_of_the_server_ends_no_sandbox(tmp_path):
    with E2bServer(tmp_path) as server:
        box = Sandbox.create(**server.options)
        box.files.write("/tmp/note", "before")
        server.stop()
        server.start()
        again = Sandbox.connect(box.sandbox_id, **server.options)
        assert again.files.read("/tmp/note") == "before"
        assert again.kill()


def test_what_is_not_offered_is_refused_by_name(server, box):
    for path in ("pause", "snapshots"):
        answer = patient.post(
            f"{server.url}/sandboxes/{box.sandbox_id}/{path}", json={},
            headers={"x-api-key": server.options["api_key"]},
        )  # fmt: skip
        assert answer.status_code == 501
        assert answer.json()["message"].startswith(f"{path} is not offered")


@pytest.mark.parametrize(
    "asked", [{"volumeMounts": [{"name": "kept", "path": "/mnt"}]}, {"iam": {"tokens": {}}}]
)
def test_a_creation_that_needs_what_is_not_offered_is_refused(server, asked):
    answer = patient.post(
        f"{server.url}/v2/sandboxes", json={"templateID": "base", **asked},
        headers={"x-api-key": server.options["api_key"]},
    )  # fmt: skip
    assert answer.status_code == 501
    assert answer.json()["message"].startswith(f"{next(iter(asked))} is not offered")


@pytest.mark.parametrize(
    ("call", "asked"),
    [
        ("filesystem.Filesystem/ListDir", {"path": "/tmp", "depth": [2]}),
        ("filesystem.Filesystem/ListDir", {"path": "/tmp", "depth": 1e400}),
        ("process.Process/Update", {"process": {"pid": 1}, "pty": {"size": {"cols": [80]}}}),
        ("process.Process/Update", {"process": {"pid": 1}, "pty": {"size": {"rows": True}}}),
    ],
)
def test_what_is_no_number_is_refused(server, shared, call, asked):
    headers = {
        "e2b-sandbox-id": shared.sandbox_id, "content-type": "application/json",
        "x-access-token": patient.post(
            f"{server.url}/sandboxes/{shared.sandbox_id}/connect", json={"timeout": 60},
            headers={"x-api-key": server.options["api_key"]},
        ).json()["envdAccessToken"],
    }  # fmt: skip
    answer = patient.post(f"{server.url}/{call}", headers=headers, content=json.dumps(asked))
    assert answer.status_code == 400, answer.text
    assert "a whole number" in answer.json()["message"]


@pytest.mark.parametrize(
    ("call", "asked", "what"),
    [
        ("Start", [{"process": {"cmd": "true"}, "pty": "yes"}], "pty"),
        ("StreamInput", [{"start": 1}], "start"),
        ("StreamInput", [{"start": {"process": {"pid": 1}}}, {"data": "x"}], "data"),
    ],
)
def test_what_is_no_object_is_refused(server, shared, call, asked, what):
    headers = {"e2b-sandbox-id": shared.sandbox_id, "x-access-token": shared._envd_access_token}
    content = b"".join(map(frame, asked))
    answer = patient.post(f"{server.url}/process.Process/{call}", headers=headers, content=content)
    assert (answer.status_code, answer.json()["message"]) == (400, f"{what} is missing")


def test_a_full_disk_is_told_and_the_sandbox_goes_on(box):
    with pytest.raises(SandboxException, match=r"(?i)space|too large"):
        box.files.write("/tmp/large", bytes(100_000_000))
    box.files.remove("/tmp/large")
    box.files.write("/tmp/small", "x")
    assert box.files.read("/tmp/small") == "x"


def test_a_signature_opens_files_alone(server, box):
    box.files.write("/tmp/f", "signed")
    url = httpx.URL(box.download_url("/tmp/f"))
    headers = {"e2b-sandbox-id": box.sandbox_id, "content-type": "application/json"}
    for path in ("/process.Process/List", "/filesystem.Filesystem/Remove", "/execute"):
        answer = patient.post(url.copy_with(path=path), headers=headers, content=b"{}")
        assert answer.status_code == 401, path
    upload = httpx.URL(box.upload_url("/tmp/f"))
    for path in ("/process.Process/Start", "/filesystem.Filesystem/Stat", "/contexts"):
        answer = patient.post(upload.copy_with(path=path), headers=headers, content=b"{}")
        assert answer.status_code == 401, path


def test_a_page_of_another_site_can_ask_nothing(server, box):
    key = {"x-api-key": server.options["api_key"]}
    for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        answer = patient.get(f"{server.url}/sandboxes", headers=key | headers)
        assert answer.status_code in (403, 421)
    text = {"content-type": "text/plain"}
    made = patient.post(
        f"{server.url}/sandboxes", headers=key | text, content=b'{"templateID":"base"}'
    )
    assert made.status_code == 415
    port = httpx.URL(server.url).port
    label = {"host": f"49983-{box.sandbox_id}.localhost:{port}"}
    assert patient.get(f"{server.url}/health", headers=label).status_code == 204


def test_a_repeated_create_makes_one_sandbox(server):
    headers = {"x-api-key": server.options["api_key"], "idempotency-key": uuid.uuid4().hex}
    wanted = {"templateID": "base", "timeout": 60}
    made = [
        patient.post(f"{server.url}/v2/sandboxes", headers=headers, json=wanted, timeout=60).json()
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert Sandbox.connect(made[0]["sandboxID"], **server.options).kill()


def test_a_create_with_the_key_of_a_sandbox_that_has_ended_makes_another(server):
    key = {"x-api-key": server.options["api_key"]}
    headers = key | {"idempotency-key": uuid.uuid4().hex}

    def made(timeout: int) -> str:
        wanted = {"templateID": "base", "timeout": timeout}
        answer = patient.post(f"{server.url}/sandboxes", headers=headers, json=wanted, timeout=60)
        return answer.json()["sandboxID"]

    def listed(box: str) -> bool:
        found = patient.get(f"{server.url}/sandboxes", headers=key).json()
        return box in [one["sandboxID"] for one in found]

    first, deadline = made(1), time.monotonic() + 100
    while listed(first):
        assert time.monotonic() < deadline
        time.sleep(0.1)  # nothing says that it has ended to who does not ask it
    again = made(60)
    assert listed(again)
    assert Sandbox.connect(again, **server.options).kill()


def test_more_metadata_than_a_list_can_show_is_refused(server):
    with pytest.raises(SandboxException, match="metadata has more than"):
        Sandbox.create(metadata={"a": "x" * 20_000}, **server.options)


def test_metadata_that_no_answer_can_say_is_refused_and_breaks_no_list(server):
    headers = {"x-api-key": server.options["api_key"], "content-type": "application/json"}
    for half in (b"\\ud83d", b"\\uDE00", b"\xed\xa0\xbd"):
        asked = b'{"templateID": "base", "metadata": {"a": "%s"}}' % half
        answer = patient.post(f"{server.url}/sandboxes", headers=headers, content=asked)
        assert answer.status_code == 400, answer.text
        assert patient.get(f"{server.url}/sandboxes", headers=headers).status_code == 200
    assert parsed(b'{"a": "\\ud83d\\uDE00"}') == {"a": "\U0001f600"}


def test_a_command_may_be_ended_by_any_signal(shared):
    with pytest.raises(CommandExitException) as failed:
        shared.commands.run("kill -40 $$")
    assert failed.value.exit_code == -1


@pytest.mark.parametrize("timeout", [-1, 366 * 86_400])
def test_times_that_cannot_be_are_refused_with_what_can(server, timeout):
    with pytest.raises(SandboxException, match="timeout is"):
        Sandbox.create(timeout=timeout, **server.options)


@pytest.mark.parametrize("timeout", [0, 0.5, True, "60", 1e400, None])
def test_times_that_no_sdk_sends_are_refused_too(server, timeout):
    content = json.dumps({"templateID": "base", "timeout": timeout})
    headers = {"x-api-key": server.options["api_key"], "content-type": "application/json"}
    answer = patient.post(f"{server.url}/v2/sandboxes", headers=headers, content=content)
    assert (answer.status_code, answer.json()["code"]) == (400, 400)
    assert "timeout is" in answer.json()["message"]


def test_an_unknown_template_does_not_exist(server):
    with pytest.raises(SandboxException, match="does not exist"):
        Sandbox.create("no-such-template", **server.options)
    key = {"x-api-key": server.options["api_key"]}
    assert patient.get(f"{server.url}/templates/aliases/nothing", headers=key).status_code == 404


# Commands


def test_a_command_has_output_and_exit_code(shared):
    done = shared.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0)
    with pytest.raises(CommandExitException) as failed:
        shared.commands.run("echo half; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "half\n")


def test_pytest_runs_in_a_sandbox_without_an_image(box):
    """Of the interpreter that Penstock is installed in, by `pip install -e` maybe."""
    box.files.write("test_x.py", "def test_a(): pass")
    ran = box.commands.run("python3 -m pytest test_x.py")
    assert "1 passed" in ran.stdout


def test_a_command_has_its_own_environment_folder_and_user(box):
    box.files.make_dir("/tmp/work")
    done = box.commands.run("pwd; echo $A; echo $HOME", cwd="/tmp/work", envs={"A": "1"})
    assert done.stdout.splitlines()[:2] == ["/tmp/work", "1"]
    with pytest.raises(InvalidArgumentException):
        box.commands.run("true", cwd="/no/such/folder")


def test_output_comes_while_the_command_runs(shared):
    seen = []
    first = threading.Event()

    def note(text):
        seen.append(text)
        first.set()

    handle = shared.commands.run("echo one; read line; echo $line", background=True, stdin=True)
    reader = threading.Thread(target=lambda: handle.wait(on_stdout=note))
    reader.start()
    assert first.wait(100)
    shared.commands.send_stdin(handle.pid, "two\n")
    reader.join(100)
    assert "".join(seen) == "one\ntwo\n"


@needs_recent
def test_input_is_ended(shared):
    handle = shared.commands.run("cat; echo done", background=True, stdin=True)
    shared.commands.send_stdin(handle.pid, "text\n")
    shared.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "text\ndone\n"


@needs_recent
def test_input_that_a_command_cannot_get_is_refused(shared):
    without = shared.commands.run("sleep 600", background=True)
    with pytest.raises(SandboxException, match="takes no input"):
        shared.commands.send_stdin(without.pid, "lost")
    closed = shared.commands.run("cat; sleep 600", background=True, stdin=True)
    shared.commands.close_stdin(closed.pid)
    with pytest.raises(SandboxException, match="its input was closed"):
        shared.commands.send_stdin(closed.pid, "lost")
    assert without.kill()
    assert closed.kill()


@needs_recent
def test_a_command_out_of_time_is_killed(shared):
    mark = uuid.uuid4().hex
    with pytest.raises(TimeoutException):
        shared.commands.run(f"sleep 1000 # {mark}", timeout=1)
    deadline = time.monotonic() + 100
    while any(mark in " ".join(one.args) for one in shared.commands.list()):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_background_commands_are_listed_found_and_killed(box):
    handle = box.commands.run("sleep 1000", background=True, timeout=0)
    (found,) = [one for one in box.commands.list() if one.pid == handle.pid]
    assert found.cmd == "/bin/bash"
    assert found.args[-1] == "sleep 1000"
    again = box.commands.connect(handle.pid)
    assert box.commands.kill(handle.pid)
    with pytest.raises(CommandExitException):
        again.wait()
    assert not box.commands.kill(handle.pid)


def test_what_is_left_in_the_background_outlives_its_command(box):
    box.commands.run("setsid sh -c 'sleep 0.5; echo done > /tmp/marker' > /dev/null 2>&1 &")
    deadline = time.monotonic() + 100
    while not box.files.exists("/tmp/marker"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_client_that_hangs_up_ends_no_command(box):
    handle = box.commands.run("sleep 0.5; echo done > /tmp/after", background=True, timeout=0)
    handle.disconnect()
    deadline = time.monotonic() + 100
    while not box.files.exists("/tmp/after"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_large_output_comes_whole(shared):
    done = shared.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert len(done.stdout) == 3_000_000


@needs_recent
def test_characters_are_never_torn(shared):
    assert (
        shared.commands.run("python3 -c \"print('äß漢' * 30000)\"").stdout == "äß漢" * 30000 + "\n"
    )


def test_a_terminal_is_one(box):
    shown = bytearray()
    seen = threading.Event()

    def note(data):
        shown.extend(data)
        if b"40 100" in shown:
            seen.set()

    handle = box.pty.create(size=_size(30, 90), timeout=60)
    reader = threading.Thread(target=lambda: handle.wait(on_pty=note), daemon=True)
    reader.start()
    box.pty.resize(handle.pid, _size(40, 100))
    box.pty.send_stdin(handle.pid, b"stty size; tty\n")
    assert seen.wait(100), bytes(shown)
    box.pty.send_stdin(handle.pid, b"exit\n")
    reader.join(100)


def _size(rows, cols):
    from e2b import PtySize

    return PtySize(rows=rows, cols=cols)


# Files


def test_files_go_up_and_down(box):
    written = box.files.write("/tmp/a/b/c.txt", "text ä")
    assert written.path == "/tmp/a/b/c.txt"
    assert box.files.read("/tmp/a/b/c.txt") == "text ä"
    content = bytes(range(256)) * 10_000
    box.files.write("/tmp/data", content)
    assert bytes(box.files.read("/tmp/data", format="bytes")) == content
    assert b"".join(box.files.read("/tmp/data", format="stream")) == content
    box.files.write("/tmp/data", "shorter")
    assert box.files.read("/tmp/data") == "shorter"


def test_many_files_go_up_at_once(box):
    entries = [{"path": f"/tmp/many/{number}", "data": str(number)} for number in range(20)]
    assert len(box.files.write_files(entries)) == 20
    assert {one.name for one in box.files.list("/tmp/many")} == {str(n) for n in range(20)}


def test_relative_paths_are_of_the_home(box):
    box.files.write("note", "x")
    home = box.commands.run("echo $HOME").stdout.strip()
    assert box.files.read(f"{home}/note") == "x"


def test_an_absent_file_is_told_as_such(shared):
    with pytest.raises(FileNotFoundException):
        shared.files.read("/tmp/absent")
    with pytest.raises(FileNotFoundException):
        shared.files.list("/tmp/absent")
    with pytest.raises(FileNotFoundException):
        shared.files.get_info("/tmp/absent")
    assert not shared.files.exists("/tmp/absent")
    with pytest.raises(InvalidArgumentException):
        shared.files.read("/tmp")


def test_folders_are_made_listed_moved_and_removed(box):
    assert box.files.make_dir("/tmp/one/two")
    assert not box.files.make_dir("/tmp/one/two")
    box.files.write("/tmp/one/two/f", "x")
    names = {(one.name, one.type.value) for one in box.files.list("/tmp/one", depth=2)}
    assert names == {("two", "dir"), ("f", "file")}
    box.files.rename("/tmp/one", "/tmp/three")
    assert box.files.read("/tmp/three/two/f") == "x"
    box.files.remove("/tmp/three")
    assert not box.files.exists("/tmp/three")
    box.files.remove("/tmp/three")


def test_an_entry_says_what_it_is(box):
    box.files.write("/tmp/tool", "12345")
    box.commands.run("chmod 750 /tmp/tool; ln -s tool /tmp/link")
    info = box.files.get_info("/tmp/tool")
    assert (info.name, info.path, info.size) == ("tool", "/tmp/tool", 5)
    assert info.mode & 0o777 == 0o750
    assert info.permissions.endswith("rwxr-x---")
    assert abs(info.modified_time.timestamp() - time.time()) < 600


def test_a_time_that_no_date_has_hides_no_entry(box):
    box.commands.run("mkdir /tmp/odd && cd /tmp/odd && touch new")
    box.commands.run(
        "touch -d @99999999999999 /tmp/odd/late; touch -d @-99999999999999 /tmp/odd/early"
    )
    assert {one.name for one in box.files.list("/tmp/odd")} == {"early", "late", "new"}
    assert box.files.get_info("/tmp/odd/late").name == "late"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "1970-01-01T00:00:00Z"), (1e14, "9999-12-31T23:59:59.999999Z"),
     (1e300, "9999-12-31T23:59:59.999999Z"), (-1e14, "0001-01-01T00:00:00Z")],
)  # fmt: skip
def test_a_time_that_no_date_has_is_the_first_or_the_last(seconds, said):
    assert moment(seconds) == said


@pytest.mark.parametrize("path", ["/../../../../etc/shadow", "/proc/1/root/etc/shadow"])
def test_no_path_leads_to_the_host(shared, path):
    with pytest.raises((SandboxException, FileNotFoundException)):
        shared.files.read(path)


def test_changes_in_a_folder_are_seen(box):
    box.files.make_dir("/tmp/watched")
    watcher = box.files.watch_dir("/tmp/watched")
    box.files.write("/tmp/watched/new", "x")
    names = set()
    deadline = time.monotonic() + 100
    while "new" not in names:
        assert time.monotonic() < deadline
        names |= {event.name for event in watcher.get_new_events()}
    watcher.stop()
    with pytest.raises(FileNotFoundException):
        box.files.watch_dir("/tmp/absent")


@pytest.mark.parametrize("path", ["watched", "~/watched", "/tmp/../home/sandbox//watched/"])
def test_a_change_is_named_from_its_folder_however_that_was_named(box, path):
    box.files.make_dir("watched")
    watcher = box.files.watch_dir(path)
    box.files.write("watched/new", "x")
    names = set()
    deadline = time.monotonic() + 100
    while not names:
        assert time.monotonic() < deadline
        names |= {event.name for event in watcher.get_new_events()}
    assert names == {"new"}


def test_signed_addresses_need_no_header(server, box):
    box.files.write("/tmp/f", "signed")
    token = box._envd_access_token

    def address(path, action, expires=""):
        text = f"{path}:{action}::{token}" + (f":{expires}" if expires else "")
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        query = (
            f"path={path}&signature=v1_{digest}"
            if not expires
            else (f"path={path}&signature=v1_{digest}&signature_expiration={expires}")
        )
        return f"{server.url}/files?{query}".replace("+", "%2B")

    assert patient.get(address("/tmp/f", "read")).text == "signed"
    assert patient.get(address("/tmp/f", "read", str(int(time.time()) + 60))).text == "signed"
    assert patient.get(address("/tmp/f", "read", str(int(time.time()) - 1))).status_code == 401
    assert patient.get(address("/tmp/f", "write")).status_code == 401
    url = address("/tmp/g", "write")
    assert patient.post(url, files={"file": ("/tmp/g", b"up")}).status_code == 200
    assert box.files.read("/tmp/g") == "up"
    assert patient.get(box.download_url("/tmp/f")).text == "signed"


# Forks


def test_a_fork_has_the_variables_of_its_sandbox(server):
    with Sandbox.create(timeout=60, envs={"GREETING": "hello"}, **server.options) as box:
        (name,) = server.fork(box.sandbox_id, 1)
        with Sandbox.connect(name, **server.options) as child:
            assert child.commands.run("echo $GREETING").stdout == "hello\n"


def test_a_fork_has_the_files_and_not_the_processes(server, box):
    box.files.write("/tmp/state", "before")
    box.commands.run("sleep 1000", background=True, timeout=0)
    children = [Sandbox.connect(one, **server.options) for one in server.fork(box.sandbox_id, 2)]
    box.files.write("/tmp/state", "after")
    for child in children:
        assert child.files.read("/tmp/state") == "before"
        assert child.commands.list() == []
        child.kill()


# The interpreter


@interpreter
def test_cells_keep_their_names_and_show_what_they_are(server):
    with CodeSandbox.create(**server.options) as box:
        box.run_code("x = 20")
        done = box.run_code("print('shown')\nx + 22")
        assert done.text == "42"
        assert done.logs.stdout == ["shown\n"]
        assert done.execution_count == 2
        failed = box.run_code("def f():\n    1 / 0\nf()")
        assert failed.error.name == "ZeroDivisionError"
        assert "1 / 0" in failed.error.traceback
        assert "Traceback" in failed.error.traceback
        assert box.run_code("import os; os.environ['A']", envs={"A": "1"}).text == "'1'"
        assert box.run_code("import asyncio; await asyncio.sleep(0, 'awaited')").text == "'awaited'"
        lines = []
        box.run_code(
            "import subprocess; subprocess.run(['echo', 'child'])",
            on_stdout=lambda message: lines.append(message.line),
        )
        assert lines == ["child\n"]


@interpreter
def test_cells_share_an_event_loop(server):
    with CodeSandbox.create(**server.options) as box:
        begun = """
import asyncio
queue = asyncio.Queue()
async def work():
    await asyncio.sleep(0)
    queue.put_nowait(5)
    return 7
task = asyncio.create_task(work())
"""
        assert box.run_code(begun).error is None
        assert box.run_code("await task, await queue.get()").text == "(7, 5)"
        assert box.run_code("asyncio.run(work())").text == "7"
        failed = box.run_code("await asyncio.sleep(0)\n1 / 0").error
        assert failed.traceback.count("File") == 1


@interpreter
def test_cells_have_what_a_notebook_has(server):
    with CodeSandbox.create(**server.options) as box:
        done = box.run_code("n = 2\n!echo {n}\nlines = !echo kept\nlines")
        assert (done.logs.stdout, done.text) == (["2\n"], "['kept']")
        assert box.run_code("%%bash\necho script").logs.stdout == ["script\n"]
        assert box.run_code("%timeit -n 3 1 + 1\n%matplotlib inline").error is None
        assert box.run_code("%cd /tmp").error.name == "UsageError"
        html, raw, value = box.run_code(
            "from IPython.display import HTML, JSON, display\n"
            "display(HTML('<b>'))\ndisplay({'a/b': 1}, raw=True)\nJSON({'a': [1]})"
        ).results
        assert (html.html, html.is_main_result) == ("<b>", False)
        assert raw.extra == {"a/b": 1}
        assert (value.json, value.is_main_result) == ({"a": [1]}, True)
        assert box.run_code("6 * 7;").text is None
        assert box.run_code("Out[1], In[1][:5]").text == "(['kept'], 'n = 2')"


@interpreter
def test_what_a_cell_has_drawn_is_a_result_with_a_picture(server):
    """A stand-in for matplotlib: what is asked of it is its public API."""
    figure = """
class Figure:
    def savefig(self, file, format, bbox_inches): file.write(b"drawn as " + format.encode())
"""
    pyplot = """
from matplotlib.figure import Figure
figures = []
def plot(*_): figures.append(Figure())
def get_fignums(): return list(range(len(figures)))
def figure(number): return figures[number]
def close(which): figures.clear()
def show(): raise NotImplementedError
"""
    png = base64.b64encode(b"drawn as png").decode()
    with CodeSandbox.create(**server.options) as box:
        for name, text in {"__init__": "", "figure": figure, "pyplot": pyplot}.items():
            box.files.write(f"/tmp/drawing/matplotlib/{name}.py", text)
        box.run_code("import sys; sys.path.insert(0, '/tmp/drawing')")
        assert box.run_code("'matplotlib' in sys.modules").text == "False"
        shown = box.run_code(
            "import matplotlib.pyplot as plt\nplt.plot(1)\nplt.show()\nprint('then')\nplt.plot(2)"
        )
        assert shown.error is None
        assert [one.png for one in shown.results] == [png, png]
        assert box.run_code("plt.plot(1); 1 / 0").results[0].png == png
        assert box.run_code("plt.get_fignums()").text == "[]"


@interpreter
def test_an_object_is_shown_in_every_form_that_it_offers(server):
    forms = """
class Shown:
    def __repr__(self): return 'plain'
    def _repr_pdf_(self): return b'pdf'
    def _repr_javascript_(self): return 'script'
    def _repr_mimebundle_(self, include=None, exclude=None): return {'a/b': {'c': 1}}
Shown()
"""
    with CodeSandbox.create(**server.options) as box:
        [shown] = box.run_code(forms).results
        assert (shown.text, shown.pdf, shown.javascript) == ("plain", "cGRm", "script")
        assert shown.extra == {"a/b": {"c": 1}}
        too_large = box.run_code("'x' * 9_000_000").error
        assert too_large.name == "ValueError"
        assert too_large.value.endswith("8,388,608 can be shown")


@interpreter
def test_a_line_that_would_fill_the_server_costs_its_own_client_alone(server):
    """The cell finds where its interpreter writes; what it writes there the client may parse."""
    flood = """
import gc, os
[lines] = [one for one in gc.get_objects() if type(one).__name__ == "Lines"]
line = b'+{"type":"stdout","x":[' + b"{}," * 200_000 + b'1],"text":"x","timestamp":1}\\n'
view = memoryview(line)
while view:
    view = view[os.write(lines._file.fileno(), view):]
"""
    with CodeSandbox.create(**server.options) as box:
        assert box.run_code(flood).logs.stdout == ["x"]
        assert box.run_code("1 + 1").text == "2"


@interpreter
def test_a_process_that_a_cell_forks_ends_with_the_cell(server):
    with CodeSandbox.create(**server.options) as box:
        forks = "import os, sys\nif os.fork() == 0:\n    sys.exit(3)\nprint(os.wait()[1] >> 8)"
        ran = box.run_code(forks)
        assert (ran.logs.stdout, ran.error) == (["3\n"], None)
        for _ in range(3):
            ran = box.run_code("print(1)")
            assert (ran.logs.stdout, ran.logs.stderr) == (["1\n"], [])


@interpreter
def test_contexts_do_not_share_names(server):
    with CodeSandbox.create(**server.options) as box:
        context = box.create_code_context(cwd="/tmp")
        box.run_code("x = 1", context=context)
        assert box.run_code("x", context=context).text == "1"
        assert box.run_code("x").error.name == "NameError"
        assert box.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"


@interpreter
def test_an_interpreter_that_dies_is_told_and_replaced(server):
    with CodeSandbox.create(**server.options) as box:
        box.run_code("x = 1")
        assert box.run_code("import os; os._exit(3)").error.name == "ContextDied"
        assert box.run_code("x").error.name == "NameError"


@interpreter
def test_a_cell_that_writes_past_the_interpreter_ends_its_own_context(server):
    write = """
import os
for at in range(3, 20):
    try:
        for _ in range({times}):
            os.write(at, {what})
    except OSError:
        pass
"""
    with CodeSandbox.create(**server.options) as box:
        box.run_code(write.format(times=1, what=r"b'1\n'"))
        assert box.run_code("1 + 1").text == "2"
        box.run_code(write.format(times=400, what="b'x' * 65536"))
        assert box.run_code("1 + 1").text == "2"


@interpreter
def test_a_cell_out_of_time_is_interrupted(server):
    with CodeSandbox.create(**server.options) as box:
        box.run_code("kept = 1")
        with pytest.raises(TimeoutException):
            box.run_code("import time; time.sleep(1000)", timeout=1)
        assert box.run_code("kept").text == "1"


# The same, not blocking


async def test_the_asynchronous_client_does_the_same(server):
    box = await AsyncSandbox.create(timeout=60, envs={"A": "1"}, **server.options)
    done = await box.commands.run("echo $A; exit 0")
    assert done.stdout == "1\n"
    await box.files.write("/tmp/f", b"x" * 100_000)
    assert len(await box.files.read("/tmp/f", format="bytes")) == 100_000
    many = await asyncio.gather(*(box.commands.run(f"echo {number}") for number in range(16)))
    assert [one.stdout for one in many] == [f"{number}\n" for number in range(16)]
    seen = asyncio.Event()
    await box.files.make_dir("/tmp/watched")
    watcher = await box.files.watch_dir("/tmp/watched", on_event=lambda event: seen.set())
    await box.files.write("/tmp/watched/new", "x")
    await asyncio.wait_for(seen.wait(), 100)
    await watcher.stop()
    handle = await box.commands.run("sleep 1000", background=True)
    assert await handle.kill()
    with pytest.raises(CommandExitException):
        await handle.wait()
    assert await box.kill()
    assert not await box.is_running()


@needs_recent
def test_sixteen_sandboxes_at_once(server):
    async def one(number: int) -> str:
        box = await AsyncSandbox.create(**server.options)
        done = await box.commands.run(f"echo {number}")
        await box.kill()
        return done.stdout

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(one, range(16)))

    assert asyncio.run(all_of_them()) == [f"{number}\n" for number in range(16)]
