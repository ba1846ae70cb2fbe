"""The door of every HTTP service: tokens, health, figures."""

import asyncio
import base64
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from ground import SettingError
from ground.errors import RedisUnavailable
from ground.http import HttpGuard, Sheet, listen, require_token
from ground.settings import GroundSettings


def basic(user: str) -> str:
    return f"Basic {base64.b64encode(user.encode()).decode()}"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


async def well() -> dict[str, Any]:
    return {"by": "heart"}


async def ill() -> dict[str, Any]:
    raise RedisUnavailable("nobody answers")


async def figures() -> list[Any]:
    sheet = Sheet("task")
    sheet.gauge("penstock_things", "Things.", 3, 'a "b"')
    sheet.count("penstock_deeds_total", "Deeds.", 4, "x", outcome="done")
    return sheet.families()


def at(**options: Any) -> httpx.AsyncClient:
    guard = HttpGuard(app, **{"health": well, "figures": figures, **options})
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=guard), base_url="http://127.0.0.1:8889"
    )


async def test_without_a_token_everybody_enters() -> None:
    async with at() as client:
        assert (await client.get("/anything")).text == "inside"
        assert (await client.get("/metrics")).status_code == 200


@pytest.mark.parametrize(
    "given",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "},
     {"Authorization": "secret"}, {"Authorization": "Basic secret"},
     {"Authorization": "Bearer secrets"}, {"Authorization": "Bearer s\u00e9cret"}],
)  # fmt: skip
async def test_a_missing_or_wrong_token_is_refused_everywhere_but_at_healthz(
    given: dict[str, str],
) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    async with at(token=SecretStr("secret")) as client:
        for method, path in (
            ("GET", "/"),
            ("POST", "/x"),
            ("GET", "/metrics"),
            ("GET", "//healthz"),
        ):
            answer = await client.request(method, path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "inside" not in answer.text
        assert (await client.get("/healthz", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    "given",
    ["Bearer secret", "bearer secret", "BEARER  secret", basic("any:secret"), basic("secret:"),
     basic("secret").replace("Basic", "basic")],
)  # fmt: skip
async def test_the_token_enters_in_every_form_that_clients_have_for_it(given: str) -> None:
    async with at(token=SecretStr("secret")) as client:
        assert (await client.get("/", headers={"Authorization": given})).text == "inside"


async def test_a_url_with_the_token_in_it_is_enough_for_clients() -> None:
    async with at(token=SecretStr("secret")) as client:
        for user in ("any:secret", "secret"):
            assert (await client.get(f"http://{user}@127.0.0.1:8889/")).text == "inside"
        assert (await client.get("http://any:wrong@127.0.0.1:8889/")).status_code == 401


HERE = ("127.0.0.1:8889", "[::1]:8889", "10.1.2.3", "localhost", "LOCALHOST:8889", "localhost.:1",
        socket.gethostname(), f"{socket.gethostname()}:8889")  # fmt: skip
ELSEWHERE = ("evil.example", "evil.example:8889", "127.0.0.1.evil.example",
             "localhost.evil.example", "1.2.3", "", "[evil]", "a@127.0.0.1")  # fmt: skip


@pytest.mark.parametrize("path", ["/x", "/metrics", "/healthz"])
async def test_a_request_for_another_host_is_refused_and_one_for_this_is_not(path: str) -> None:
    async with at() as client:
        for host in HERE:
            assert (await client.get(path, headers={"Host": host})).status_code == 200, host
        for host in ELSEWHERE:
            answer = await client.get(path, headers={"Host": host})
            assert answer.status_code == 421, host
            assert "PENSTOCK_HTTP_HOSTS" in answer.json()["message"]


@pytest.mark.parametrize(("version", "status"), [("1.1", 400), ("1.0", 200)])
async def test_a_request_without_a_host_is_refused_unless_it_is_of_http_1_0(
    version: str, status: int
) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "http_version": version}
    await HttpGuard(app, health=well, figures=figures)(scope, app, send)
    assert sent[0]["status"] == status


async def test_further_names_of_a_host_are_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP_HOSTS", "buffer, Rollouts.example")
    async with at(host="Node7.example") as client:  # which it listens on
        for host in ("buffer", "buffer:8889", "rollouts.example", "node7.example:8889"):
            assert (await client.get("/", headers={"Host": host})).status_code == 200
        assert (await client.get("/", headers={"Host": "example"})).status_code == 421


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_pages_of_other_sites_are_refused_whatever_they_ask(method: str) -> None:
    async with at() as client:
        for page in (
            "https://evil.example",
            "null",
            "http://127.0.0.1:3000",
            "http://localhost:8889",
        ):
            answer = await client.request(method, "/x", headers={"Origin": page})
            assert (answer.status_code, page in answer.json()["message"]) == (403, True)
        for own in ("http://127.0.0.1:8889", "https://127.0.0.1:8889"):
            answer = await client.request(method, "/x", headers={"Origin": own})
            assert answer.text == "inside"


async def test_what_changes_something_must_be_json() -> None:
    async with at() as client:
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            None,
        ):
            headers = {} if kind is None else {"Content-Type": kind}
            answer = await client.post("/x", content=b"{}", headers=headers)
            assert (answer.status_code, "application/json" in answer.text) == (415, True)
        assert (await client.post("/x", headers={"Content-Type": "text/plain"})).status_code == 415
        assert (await client.post("/x", json={})).text == "inside"
        spelt = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await client.put("/x", content=b"{}", headers=spelt)).text == "inside"


async def test_without_a_body_there_is_nothing_to_name() -> None:
    aiohttps = {"Content-Type": "application/octet-stream"}
    async with at() as client:
        assert (await client.post("/x")).text == "inside"
        assert (await client.post("/x", headers=aiohttps)).text == "inside"
        assert (await client.post("/x", content=b"{}", headers=aiohttps)).status_code == 415
        assert (await client.request("GET", "/x", content=b"{}")).text == "inside"


async def test_many_who_ask_for_health_share_one_look() -> None:
    looks, let = 0, asyncio.Event()

    async def slow() -> dict[str, Any]:
        nonlocal looks
        looks += 1
        await let.wait()
        return {}

    async with at(health=slow) as client:
        async with asyncio.TaskGroup() as many:
            asked = [many.create_task(client.get("/healthz")) for _ in range(100)]
            await asyncio.sleep(0)
            let.set()
        assert {answer.result().status_code for answer in asked} == {200}
        await client.get("/healthz")
    assert looks == 1


async def cut_off(kind: bytes = b"") -> list[Any]:
    """What is sent for a request that the server's end cuts off, perhaps in its answer."""
    began, sent = asyncio.Event(), list[Any]()

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        if kind:
            headers = [(b"content-type", kind)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"look", "more_body": True})
        began.set()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    guard = HttpGuard(hang, health=well, figures=figures, ending=504)
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
    request = asyncio.create_task(guard(scope, well, send))
    await began.wait()
    request.cancel()
    await request
    return sent


async def test_what_the_servers_end_cuts_off_is_answered_so_that_clients_repeat_it() -> None:
    assert (await cut_off())[0]["status"] == 504


async def test_a_stream_of_events_ends_with_its_server_and_half_an_answer_is_none() -> None:
    assert (await cut_off(b"text/event-stream; charset=utf-8"))[-1] == {
        "type": "http.response.body", "body": b"",
    }  # fmt: skip
    with pytest.raises(asyncio.CancelledError):
        await cut_off(b"application/json")


async def test_two_tokens_are_no_token() -> None:
    both = [("Authorization", "Bearer secret"), ("Authorization", "Bearer wrong")]
    async with at(token=SecretStr("secret")) as client:
        assert (await client.get("/", headers=both)).status_code == 401
        assert (await client.get("/", headers=both[:1])).status_code == 200


async def test_health_says_what_is_wrong_and_who_is_well() -> None:
    async with at(health=ill) as client:
        answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()["reason"]) == (503, "nobody answers")
    async with at() as client:
        assert (await client.get("/healthz")).json() == {
            "status": "healthy", "pid": os.getpid(), "by": "heart",
        }  # fmt: skip
        refused = await client.post("/healthz")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_has_a_port_is_said_and_no_argument_of_its(host: str) -> None:
    program = (
        "import socket, sys\n"
        "family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET\n"
        "door = socket.create_server((sys.argv[1], 0), family=family)\n"
        "print(door.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, host, "--password", "s3cret"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as other:  # fmt: skip
        assert other.stdout is not None
        port = int(other.stdout.readline())
        with pytest.raises(SettingError) as refused:
            listen(host, port, "PENSTOCK_BUFFER_PORT")
        other.communicate()
    assert f"Address already in use by process {other.pid} (" in str(refused.value)
    assert f"in {os.getcwd()})" in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_figures_come_with_those_of_the_process() -> None:
    async with at() as client:
        page = await client.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'penstock_things{task="a \\"b\\""} 3.0' in page.text
    assert 'penstock_deeds_total{outcome="done",task="x"} 4.0' in page.text
    assert "process_resident_memory_bytes" in page.text


async def test_a_refused_reader_gets_a_page_only_where_there_is_one() -> None:
    async with at(token=SecretStr("secret"), doorstep="<p>who?") as client:
        answer = await client.get("/")
        assert (answer.status_code, answer.text) == (401, "<p>who?")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert (await client.head("/")).headers == answer.headers
        assert json.loads((await client.get("/else")).text)["success"] is False


def test_a_taken_port_names_its_setting() -> None:
    with listen("127.0.0.1", 0, "X") as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingError, match=f"PENSTOCK_BUFFER_PORT: 127.0.0.1:{port}"):
            listen("127.0.0.1", port, "PENSTOCK_BUFFER_PORT")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_names_the_hosts_setting(host: str) -> None:
    with pytest.raises(SettingError, match=rf"PENSTOCK_BUFFER_HOST: {host}:1234 .*; name an ad"):
        listen(host, 1234, "PENSTOCK_BUFFER_PORT")


def test_a_port_that_another_takes_in_the_same_moment_is_refused_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", 0))

        class Late(socket.socket):
            def bind(self, address: Any) -> None:
                super().bind(address)  # both are bound, and one alone may listen
                rival.listen()

        monkeypatch.setattr(socket, "socket", Late)
        with pytest.raises(SettingError, match=r"PENSTOCK_BUFFER_PORT: .* cannot be listened on"):
            listen("127.0.0.1", rival.getsockname()[1], "PENSTOCK_BUFFER_PORT")


def test_no_service_is_open_to_other_machines_without_a_token_unless_that_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for host in ("127.0.0.1", "::1", "localhost"):
            require_token(host, None, "T")
        require_token("0.0.0.0", SecretStr("x"), "T")
        assert caplog.messages == []
        for host in ("0.0.0.0", "::", "10.0.0.5", "node7"):
            with pytest.raises(SettingError, match=r"PENSTOCK_X_TOKEN: is not set.*_X_TOKEN_FILE"):
                require_token(host, None, "PENSTOCK_X_TOKEN")
        require_token("0.0.0.0", None, "T", without=True)
        monkeypatch.setenv("PENSTOCK_WITHOUT_TOKEN", "1")
        require_token("0.0.0.0", None, "T")
    assert len(caplog.messages) == 2


def test_a_secret_may_lie_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "url"
    monkeypatch.delenv("PENSTOCK_REDIS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_REDIS_URL_FILE", str(file))
    with pytest.raises(SettingError, match=r"PENSTOCK_REDIS_URL_FILE: .* cannot be read"):
        GroundSettings.load()
    file.write_text(" \n")
    with pytest.raises(SettingError, match="is empty"):
        GroundSettings.load()
    file.write_text("redis://:pw@host/1\n")
    url = GroundSettings.load().redis_url
    assert url is not None
    assert url.get_secret_value() == "redis://:pw@host/1"
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://other")
    with pytest.raises(SettingError, match="is set too"):
        GroundSettings.load()


async def test_small_answers_are_sent_at_once() -> None:
    """Else each waits for the acknowledgement of the last, 40 ms on a connection kept alive."""
    at_once: list[int] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        at_once.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()
        await writer.wait_closed()

    with listen("127.0.0.1", 0, "X") as listener:
        async with await asyncio.start_server(answer, sock=listener) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await reader.read()
            writer.close()
            await writer.wait_closed()
    assert at_once == [1]


@pytest.mark.parametrize(
    ("headers", "enters"),
    [
        ({}, False),
        ({"authorization": "Bearer secret"}, True),
        ({"authorization": basic("any:secret")}, True),
        ({"authorization": "Bearer secret", "origin": "http://elsewhere.example"}, False),
        ({"authorization": "Bearer secret", "host": "elsewhere.example"}, False),
    ],
)
async def test_a_websocket_needs_what_a_request_needs(
    headers: dict[str, str], enters: bool
) -> None:
    entered, said = [], []

    async def inside(scope: Any, receive: Any, send: Any) -> None:
        entered.append(scope)

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        said.append(message["type"])

    guard = HttpGuard(inside, health=well, figures=figures, token=SecretStr("secret"))
    sent = {"host": "127.0.0.1:8000"} | headers
    scope = {
        "type": "websocket", "path": "/ws",
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
    }  # fmt: skip
    await guard(scope, receive, send)
    assert (bool(entered), said) == (enters, [] if enters else ["websocket.close"])
