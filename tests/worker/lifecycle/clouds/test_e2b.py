"""E2B's SDK, unmodified, under our lifecycle: against our server of its protocol, and a front."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.worker.e2b.serving import E2bServer
from tests.worker.lifecycle.clouds.conftest import (
    MakeLife,
    keeps_the_contract,
    killed_during_a_creation,
    throttled,
)
from tests.worker.lifecycle.conftest import gate_of
from worker.lifecycle import Command, Kind, Provider, SandboxSpec, StartRefused
from worker.lifecycle.clouds import shell
from worker.lifecycle.provider import provider_named

pytest.importorskip("e2b", reason="penstock-rl[e2b] is not installed")


class Front:
    """Answers every creation as it is told to, and says that no sandbox lives."""

    def __init__(self, status: int, **headers: str) -> None:
        front, self.creations = self, 0

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                front.creations += 1
                self.rfile.read(int(self.headers["content-length"]))
                self.answer(status, b'{"code": %d, "message": "as it is told"}' % status)

            def do_GET(self) -> None:
                self.answer(200, b"[]")

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name.replace("_", "-"), text)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Front":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def behind(front: Front) -> Provider:
    from worker.lifecycle.clouds.e2b import E2bProvider

    return E2bProvider(api_key="e2b_" + "0" * 40, api_url=front.url)


async def test_the_contract(e2b_server: E2bServer) -> None:
    await keeps_the_contract(lambda: provider_named("e2b"))


@pytest.mark.soak
async def test_large_files(e2b_server: E2bServer) -> None:
    await keeps_the_contract(lambda: provider_named("e2b"), large=True)


async def test_a_sandbox_has_its_name_and_tags_from_its_creation_on(
    e2b_server: E2bServer, life_of: MakeLife
) -> None:
    life = life_of("e2b")
    async with life.open(SandboxSpec(env={"WORD": "said"})) as sandbox:
        tags = {"penstock-run": "test", "penstock-fleet": str(life.registry.look().facts["fleet"])}
        listed = [(ref.id, ref.name) async for ref in life.provider.list(tags)]
        assert listed == [(sandbox.id, sandbox.name)]
        assert (await sandbox.exec(["sh", "-c", "echo $WORD"])).stdout == b"said\n"
        assert (await gate_of(life).status()).in_flight == 0
    assert [ref async for ref in life.provider.list(tags)] == []
    with pytest.raises(StartRefused, match="set by an E2B template"):
        await life.start(SandboxSpec(memory_mb=512))
    with pytest.raises(StartRefused, match=r"does not exist.*Check the template's name"):
        await life.start(SandboxSpec(image="absent"), attempts=5)
    assert life.registry.look().counters["opened"] == 3
    assert life.registry.look().count == 0


async def test_an_output_that_a_program_has_made_larger_is_cut(
    e2b_server: E2bServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large outputs are fetched as files, which a program that is left may have replaced."""
    provider = provider_named("e2b")
    ref = await provider.create(SandboxSpec(), name="large", tags={}, ttl=60)
    monkeypatch.setattr(shell, "MOST", 1000)
    ran = await provider.exec(ref, Command(["sh", "-c", "head -c 200000 /dev/zero"]))
    assert (ran.exit_code, len(ran.stdout)) == (0, 1000)
    await provider.terminate(ref.id)


async def test_a_name_that_is_asked_for_is_given_once(e2b_server: E2bServer) -> None:
    provider, spec = provider_named("e2b"), SandboxSpec(name="mine")
    ref = await provider.create(spec, name="mine", tags={}, ttl=60)
    with pytest.raises(Exception, match="a sandbox called mine lives") as taken:
        await provider.create(spec, name="mine", tags={}, ttl=60)
    assert provider.classify(taken.value).kind is Kind.EXISTS
    await provider.terminate(ref.id)
    again = await provider.create(spec, name="mine", tags={}, ttl=60)
    assert again.id != ref.id
    assert (await provider.exec(again, Command(["echo", "well"]))).stdout == b"well\n"
    await provider.terminate(again.id)


async def test_a_sandbox_whose_owner_was_killed_during_its_creation_is_found_by_its_name(
    e2b_server: E2bServer, life_of: MakeLife
) -> None:
    await killed_during_a_creation(life_of("e2b"), "worker.lifecycle.clouds.e2b:E2bProvider.create")


async def test_throttling_outlasts_the_sdks_patience_and_cuts_a_gate_that_adapts(
    life_of: MakeLife,
) -> None:
    with Front(429, Retry_After="0") as front:
        await throttled(life_of(behind(front)), "Rate limit exceeded")
    assert front.creations == 4, "the SDK asks again as Retry-After says, three times"


async def test_what_is_refused_for_good_says_what_to_do(
    life_of: MakeLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("E2B_API_KEY", raising=False)
    with pytest.raises(StartRefused, match=r"API key is required.*Set E2B_API_KEY"):
        await life_of("e2b").start(attempts=5)
    with Front(401) as front, pytest.raises(StartRefused, match="Set E2B_API_KEY"):
        await life_of(behind(front)).start(attempts=5)
    assert front.creations == 1


@pytest.mark.parametrize(
    ("status", "kind", "nothing_made"),
    [(409, "exists", False), (422, "exists", False), (500, "retry", False), (403, "fatal", True)],
)
async def test_the_meaning_of_an_answer(status: int, kind: str, nothing_made: bool) -> None:
    with Front(status) as front:
        provider = behind(front)
        with pytest.raises(Exception, match="as it is told") as said:
            await provider.create(SandboxSpec(), name="box", tags={}, ttl=60)
    verdict = provider.classify(said.value)
    assert (verdict.kind, verdict.nothing_made) == (kind, nothing_made)


def test_another_server_is_another_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    from worker.lifecycle.clouds.e2b import E2bProvider

    for name in ("E2B_API_URL", "E2B_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    assert E2bProvider().scope == "e2b"
    monkeypatch.setenv("E2B_DOMAIN", "sandboxes.example")
    assert E2bProvider().scope == "e2b:https://api.sandboxes.example"
