"""Two servers with a Redis, each with sandboxes of its own: both speak for all of them."""

import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from e2b import FileType, NotFoundException, Sandbox

from limiter import StartingGate
from tests.harness import patient
from tests.harness.servers import PrivateRedis
from tests.worker.e2b.serving import KEY, E2bServer
from worker.lifecycle.registry.registry import Registry

LEASE = 9.0  # seconds: a machine that stands still for 5, after its heartbeat, is no dead one
HEADERS = {"x-api-key": KEY}


def until(holds: Callable[[], object], what: str, seconds: float = 100.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Pair:
    """Two machines of one run: two folders, two hubs, a server each."""

    def __init__(self, redis: PrivateRedis, folder: Path, **settings: str) -> None:
        common = {
            "PENSTOCK_REDIS_URL": redis.url,
            "PENSTOCK_RUN": "fleet",
            "PENSTOCK_SANDBOX_LEASE": str(LEASE),
            "PENSTOCK_REAP_INTERVAL": "0.5",
            **settings,
        }
        self.redis = redis
        self.one, self.other = (E2bServer(folder / name, **common) for name in ("one", "other"))
        self.registry = Registry(redis.target, "fleet")

    def __enter__(self):
        self.one.start()
        self.other.start()
        self.meet()
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self.one, self.other):
            server.stop()
        self.registry.close()

    def meet(self) -> None:
        """Until each knows the other."""
        fleet = "penstock:e2b:{fleet}"
        until(lambda: self.redis.ask("ZCARD", f"{fleet}:machines") == 2, "they do not meet")

    def on(self, server: E2bServer, **options) -> Sandbox:
        """A sandbox on this server's machine."""
        while True:
            box = Sandbox.create(**server.options | options)
            if server.has(box.sandbox_id):
                return box
            box.kill()

    def registered(self, name: str) -> bool:
        return bool(self.registry.state(name))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with PrivateRedis(folder / "redis", aof=False) as redis, Pair(redis, folder) as found:
        yield found


@pytest.fixture
def apart(pair):
    """A sandbox of one machine, asked for by the other."""
    box = pair.on(pair.other)
    yield Sandbox.connect(box.sandbox_id, **pair.one.options)
    box.kill()


def test_creations_go_where_there_is_room(pair):
    made = [Sandbox.create(**pair.one.options) for _ in range(10)]
    scopes = Counter(pair.registry.record(box.sandbox_id).scope for box in made)
    assert len(scopes) == 2
    assert min(scopes.values()) >= 3
    for box in made:
        assert box.kill()


def test_any_server_reaches_any_sandbox(pair, apart):
    assert apart.commands.run("echo $((6 * 7))").stdout == "42\n"
    apart.files.write("/tmp/notes/note", "x" * 300_000)
    assert len(apart.files.read("/tmp/notes/note")) == 300_000
    assert [one.type for one in apart.files.list("/tmp/notes")] == [FileType.FILE]
    assert apart.is_running()
    assert apart.get_info().sandbox_id == apart.sandbox_id


def test_output_is_passed_on_as_it_comes(apart):
    process = apart.commands.run(
        "echo begun; read line; echo got $line", background=True, stdin=True
    )
    outputs = iter(process)
    assert next(outputs)[0] == "begun\n"
    apart.commands.send_stdin(process.pid, "it\n")
    assert next(outputs)[0] == "got it\n"


def test_a_listing_has_the_sandboxes_of_all_machines(pair):
    made = {pair.on(server, metadata={"run": "listed"}) for server in (pair.one, pair.other)}
    names = {box.sandbox_id for box in made}
    for server in (pair.one, pair.other):
        found = patient.get(f"{server.url}/v2/sandboxes?metadata=run%3Dlisted", headers=HEADERS)
        assert {one["sandboxID"] for one in found.json()} == names
    for box in made:
        assert Sandbox.kill(box.sandbox_id, **pair.one.options)
        assert not Sandbox.kill(box.sandbox_id, **pair.other.options)


def test_a_signed_address_leads_to_the_machine_that_has_the_file(pair, apart):
    apart.files.write("/tmp/signed", "by its token")
    assert patient.get(apart.download_url("/tmp/signed")).text == "by its token"
    sent = patient.post(apart.upload_url("/tmp/sent"), files={"file": b"up"})
    assert sent.status_code == 200
    assert apart.files.read("/tmp/sent") == "up"
    for wrong in ("v1_x", f"v1_{'a' * 43}"):
        address = f"{pair.one.url}/files?path=/tmp/signed&signature={wrong}"
        assert patient.get(address).status_code == 401


def test_a_fork_stands_beside_its_parent(pair, apart):
    apart.files.write("/tmp/kept", "both")
    (child,) = pair.one.fork(apart.sandbox_id, 1)
    assert pair.other.has(child)
    assert pair.registered(child)
    forked = Sandbox.connect(child, **pair.one.options)
    assert forked.files.read("/tmp/kept") == "both"
    assert forked.kill()
    until(lambda: not pair.registered(child), "its record stays")


def test_the_registry_follows_a_sandbox_to_its_end(pair):
    box = Sandbox.create(timeout=60, **pair.one.options)
    record = pair.registry.record(box.sandbox_id)
    assert record.state == "READY"
    box.set_timeout(600)
    until(lambda: pair.registry.record(box.sandbox_id).dies_at > record.dies_at + 400, "its end")
    box.set_timeout(1)
    until(lambda: not pair.registered(box.sandbox_id), "a sandbox that timed out is registered")


def test_nobody_else_can_say_that_a_request_was_passed_on(pair):
    for secret in ("", "x", pair.redis.ask("HGET", "penstock:e2b:{fleet}", "secret")[:-1]):
        answer = patient.get(
            f"{pair.one.url}/sandboxes", headers=HEADERS | {"x-penstock-forwarded": secret}
        )
        assert answer.status_code == 401
    assert patient.get(f"{pair.one.url}/signed?path=/x").status_code == 404


def test_a_request_that_repeats_an_earlier_one_gets_its_sandbox_anywhere(pair):
    headers = HEADERS | {"idempotency-key": "once"}
    asked = [
        patient.post(f"{server.url}/sandboxes", json={"templateID": "base"}, headers=headers)
        for server in (pair.one, pair.other, pair.one)
    ]
    assert len({one.json()["sandboxID"] for one in asked}) == 1
    assert len({one.json()["envdAccessToken"] for one in asked}) == 1
    assert Sandbox.kill(asked[0].json()["sandboxID"], **pair.other.options)


def test_a_creation_waits_for_its_permit_and_then_is_told_to_come_again(tmp_path, private_redis):
    redis = private_redis(aof=False)
    with Pair(redis, tmp_path, PENSTOCK_MAX_STARTING="1", PENSTOCK_E2B_PATIENCE="1") as pair:
        permit = StartingGate(redis.target, limit=1).sync.acquire()
        answer = _create(pair.one)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        permit.release()
        assert Sandbox.create(**pair.one.options).kill()


def test_a_full_machine_leaves_room_to_the_other_until_both_are_full(tmp_path, private_redis):
    with Pair(private_redis(aof=False), tmp_path, PENSTOCK_SESSION_MOST="2") as pair:
        made = [Sandbox.create(**pair.one.options) for _ in range(4)]
        answer = _create(pair.one)
        assert answer.status_code == 503
        assert "no machine has room" in answer.json()["message"]
        # There is room, whatever a server was told before.
        for number, server in enumerate((pair.other, pair.one)):
            assert made[number].kill()
            answer = _created_in_time(server)
            made.append(Sandbox.connect(answer.json()["sandboxID"], **server.options))
        for box in made[2:]:
            box.kill()


def test_a_server_that_is_killed_and_started_again_has_its_sandboxes(tmp_path, private_redis):
    with Pair(private_redis(aof=False), tmp_path) as pair:
        box = pair.on(pair.other)
        box.files.write("/tmp/note", "before")
        port = pair.other.port
        pair.other.kill()
        answer = patient.get(f"{pair.one.url}/sandboxes/{box.sandbox_id}", headers=HEADERS)
        assert answer.status_code == 503  # it may come back
        pair.other.start(port)
        time.sleep(LEASE + 1)  # a lease that nobody renews would be over
        through = Sandbox.connect(box.sandbox_id, **pair.one.options)
        assert through.files.read("/tmp/note") == "before"
        assert pair.registry.state(box.sandbox_id) == "READY"

        # For good: another server of the same machine reaps what it left.
        pair.other.kill()
        url = f"{pair.one.url}/sandboxes/{box.sandbox_id}"
        until(
            lambda: patient.get(url, headers=HEADERS).status_code == 404,
            "a dead machine's sandbox is not told as gone",
        )
        with pytest.raises(NotFoundException):
            Sandbox.connect(box.sandbox_id, **pair.one.options)
        assert through.is_running() is False
        pair.other.start()


def test_sandboxes_outlive_an_outage_of_redis(tmp_path, private_redis):
    redis = private_redis(aof=False)
    with Pair(redis, tmp_path, PENSTOCK_E2B_PATIENCE="2") as pair:
        box = pair.on(pair.one)
        redis.kill()
        assert box.commands.run("echo on").stdout == "on\n"
        until(lambda: _create(pair.one).status_code == 503, "Redis is missed")
        refused = _create(pair.one)
        assert "Redis" in refused.json()["message"]
        assert refused.headers["retry-after"]
        redis.lose_data()
        redis.start()
        until(lambda: _create(pair.one).status_code == 201, "Redis is back")
        until(lambda: pair.registered(box.sandbox_id), "its record was lost with Redis's data")
        assert box.commands.run("echo on").stdout == "on\n"
        assert box.kill()


def test_forks_whose_client_hangs_up_are_ended(pair):
    box = pair.on(pair.one, metadata={"run": "forked"})
    url = f"{pair.one.url}/sandboxes/{box.sandbox_id}/fork"
    listed = f"{pair.one.url}/v2/sandboxes?metadata=run%3Dforked"
    with socket.create_connection(("127.0.0.1", int(pair.one.port))) as line:
        asked = json.dumps({"count": 20, "timeout": 600})
        lines = [f"POST {httpx.URL(url).path} HTTP/1.1", "host: localhost", f"x-api-key: {KEY}",
                 "content-type: application/json", f"content-length: {len(asked)}"]  # fmt: skip
        line.sendall(("\r\n".join(lines) + "\r\n\r\n" + asked).encode())
        until(lambda: len(patient.get(listed, headers=HEADERS).json()) > 2, "no fork begins")
    until(lambda: len(patient.get(listed, headers=HEADERS).json()) == 1, "forks are left")
    assert box.kill()


def _created_in_time(server: E2bServer) -> httpx.Response:
    """A machine that is slow to answer is left out: another try finds it."""
    deadline = time.monotonic() + 100
    while (answer := _create(server)).status_code != 201:
        assert time.monotonic() < deadline, answer.text
    return answer


def _create(server: E2bServer) -> httpx.Response:
    asked = {"templateID": "base", "timeout": 30}
    return patient.post(f"{server.url}/sandboxes", json=asked, headers=HEADERS)
