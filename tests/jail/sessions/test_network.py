"""The way out of a session: its own list, through its own proxy, and nothing else."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from jail.sessions import (
    CommandRequest,
    LocalSessions,
    Network,
    Session,
    SessionRefused,
    SessionRequest,
)
from jail.sessions.hub.way_out import WayOut
from jail.sessions.settings import SessionSettings
from tests.jail.sessions.conftest import end_hubs, hub_in, sessions_in

pytestmark = [pytest.mark.timeout(120), pytest.mark.in_turns("sessions")]
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())"
# Reaches for a socket itself, past what the environment says.
STRAIGHT = """
import socket, sys
for family, where in ((2, '127.0.0.1'), (2, '0.0.0.0'), (10, '::1'), (2, '8.8.8.8')):
    try: socket.socket(family).connect((where, int(sys.argv[1])))
    except OSError: continue
    print('out by', where)
"""


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("sessions")
    yield folder
    end_hubs(folder)


@pytest.fixture(scope="module")
def allowed(boxes: Path, trainer: str) -> LocalSessions:
    """On a machine whose operator opens that one port."""
    return sessions_in(boxes, session_network=f"public,{trainer}")


async def fetched(session: Session, url: str) -> str:
    ran = await session.run(CommandRequest(["python3", "-c", FETCH, url], timeout=30))
    return ran.stdout.decode().strip() or ran.stderr.decode().strip().rsplit("\n", 1)[-1]


async def test_a_session_reaches_what_its_list_names(allowed: LocalSessions, trainer: str) -> None:
    port = trainer.partition(":")[2]
    network = Network((trainer, f"localhost:{port}"))
    session = await allowed.open(SessionRequest(env={"no_proxy": "none"}, network=network))
    url = f"http://{trainer}/"
    assert (await session.info()).network == network
    assert await fetched(session, url) == "trainer"
    assert await fetched(session, f"http://localhost:{port}/") == "trainer"
    assert "403" in await fetched(session, "http://127.0.0.1:1/")
    assert "403" in await fetched(session, "http://example.org/")
    ran = await session.run(CommandRequest(["python3", "-c", STRAIGHT, port], timeout=30))
    assert ran.stdout == b""
    other = await allowed.open(SessionRequest())
    assert "refused" in await fetched(other, url)
    await other.end()
    await session.end()


async def test_another_session_cannot_use_its_proxy(allowed: LocalSessions, trainer: str) -> None:
    """Each listens in a network of its own, so its port is nobody else's."""
    one = await allowed.open(SessionRequest(network=Network([trainer])))
    ran = await one.run(CommandRequest(["sh", "-c", "echo $HTTP_PROXY"]))
    proxy = ran.stdout.decode().strip()
    assert proxy.startswith("http://127.0.0.1:")
    two = await allowed.open(SessionRequest(env={"http_proxy": proxy, "no_proxy": "none"}))
    assert "refused" in await fetched(two, f"http://{trainer}/")
    await one.end()
    await two.end()


async def test_what_it_may_reach_changes_while_it_lives(
    allowed: LocalSessions, trainer: str
) -> None:
    session = await allowed.open(SessionRequest(env={"no_proxy": "none"}))
    url = f"http://{trainer}/"
    assert "refused" in await fetched(session, url)
    assert (await session.connect(Network([trainer]))).network is not None
    assert await fetched(session, url) == "trainer"
    await session.connect(Network(["example.org"]))
    assert "403" in await fetched(session, url)
    assert (await session.connect(None)).network is None
    assert "403" in await fetched(session, url)
    await session.end()


async def test_another_proxy_takes_over_from_one_that_is_killed(
    allowed: LocalSessions, boxes: Path, trainer: str
) -> None:
    network = Network([trainer])
    session = await allowed.open(SessionRequest(env={"no_proxy": "none"}, network=network))
    os.kill(proxy_of(boxes), signal.SIGKILL)
    assert await fetched(session, f"http://{trainer}/") == "trainer"
    await session.end()


async def test_a_hub_that_is_killed_leaves_no_proxy(folder: Path, trainer: str) -> None:
    sessions = sessions_in(folder, session_network=trainer)
    await sessions.open(SessionRequest(network=Network([trainer])))
    ended = os.pidfd_open(proxy_of(folder))
    os.kill(hub_in(folder), signal.SIGKILL)
    over = asyncio.Event()
    asyncio.get_running_loop().add_reader(ended, over.set)
    async with asyncio.timeout(100):
        await over.wait()
    asyncio.get_running_loop().remove_reader(ended)
    os.close(ended)


async def test_the_proxy_is_nobody_s_root(
    allowed: LocalSessions, boxes: Path, trainer: str
) -> None:
    session = await allowed.open(SessionRequest(network=Network([trainer])))
    status = Path(f"/proc/{proxy_of(boxes)}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    await session.end()


REFUSED = {
    "no rule at all": (["exa mple.org"], "neither a name"),
    "an address of a page": (["http://example.org"], "no port"),
    "a port that is none": (["example.org:0"], "no port"),
    "this machine": (["127.0.0.1:6379"], "PENSTOCK_SESSION_NETWORK"),
    "metadata": (["169.254.169.254:80"], "PENSTOCK_SESSION_NETWORK"),
    "neighbours": (["10.0.0.0/8:*"], "PENSTOCK_SESSION_NETWORK"),
    "very many": ([f"a{n}.org" for n in range(200)], "at most 128"),
}


@pytest.mark.parametrize(("allow", "why"), REFUSED.values(), ids=REFUSED)
async def test_bad_lists_are_refused_at_the_door(
    in_namespaces: LocalSessions, allow: list[str], why: str
) -> None:
    with pytest.raises(SessionRefused, match=why):
        await in_namespaces.open(SessionRequest(network=Network(allow)))


@pytest.mark.parametrize("rules", ["pypi.org", [443]])
def test_a_list_is_a_list_of_texts(rules: list[str]) -> None:
    with pytest.raises(ValueError, match="list of texts"):
        Network(rules)
    with pytest.raises(ValueError, match="list of texts"):
        Network(["pypi.org"], rules)


async def test_a_level_that_cannot_hold_a_list_refuses_one(sessions: LocalSessions) -> None:
    session = await sessions.open(SessionRequest())
    level = (await session.info()).isolation
    if level != "ns":
        with pytest.raises(SessionRefused, match="It needs the level 'ns'"):
            await sessions.open(SessionRequest(network=Network(["example.org"])))
        with pytest.raises(SessionRefused, match="It needs the level 'ns'"):
            await session.connect(Network(["example.org"]))
    await session.end()


async def test_an_operator_may_allow_nothing() -> None:
    limits = SessionSettings(session_network="none").session_network
    with pytest.raises(SessionRefused, match="allows nothing"):
        WayOut(limits, "ns", 65534).check({"allow": ["example.org"], "deny": []})


@pytest.mark.parametrize("deny", ["no rule", "example.org"])
async def test_what_is_denied_is_read_before_it_is_passed_on(deny: str) -> None:
    """One process holds the lists of all: none that it cannot read may get there."""
    way_out = WayOut("public", "ns", 65534)
    for allow in ([], ["example.org"]):
        with pytest.raises(SessionRefused, match="name"):
            way_out.check({"allow": allow, "deny": [deny]})


def proxy_of(folder: Path) -> int:
    """The process of the proxies that the hub there has started."""
    hub = hub_in(folder)
    children = Path(f"/proc/{hub}/task").glob("*/children")
    for child in " ".join(path.read_text() for path in children).split():
        if b"network.process" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    raise AssertionError("no proxy runs")
