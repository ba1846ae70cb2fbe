"""What the E2B SDK says of a network, against a server that stands in for a trainer."""

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox, SandboxException
from packaging.version import Version

from tests.worker.e2b.serving import E2bServer

pytestmark = pytest.mark.skipif(
    Version(version("e2b")) < Version("2.40"), reason="this SDK says less of networks"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any, trainer: str) -> Iterator[E2bServer]:
    """Its operator opens the trainer, and gives it to all that name nothing."""
    folder: Path = tmp_path_factory.mktemp("e2b")
    with E2bServer(
        folder,
        PENSTOCK_SESSION_NETWORK=f"public,{trainer}",
        PENSTOCK_E2B_NETWORK=trainer,
    ) as found:
        yield found


@contextlib.contextmanager
def box(server: E2bServer, **given: Any) -> Iterator[Sandbox]:
    found = Sandbox.create(envs={"no_proxy": "none"}, **given, **server.options)
    try:
        yield found
    finally:
        found.kill()


def reached(found: Sandbox, where: str) -> str:
    code = f"import urllib.request as u; print(u.urlopen('http://{where}/').read().decode())"
    ran = found.commands.run(f'python3 -c "{code}" 2>&1 | tail -1')
    return ran.stdout.strip()


def test_what_the_operator_gives_to_all(server: E2bServer, trainer: str) -> None:
    with box(server) as found:
        assert reached(found, trainer) == "trainer"
        assert "403" in reached(found, "127.0.0.1:6379")


def test_no_network_at_all(server: E2bServer, trainer: str) -> None:
    with box(server, allow_internet_access=False) as found:
        assert "refused" in reached(found, trainer)
    with box(server, network={"deny_out": ["0.0.0.0/0"]}) as found:
        assert "refused" in reached(found, trainer)
    with box(server, network={"deny_out": ["127.0.0.0/8"]}) as found:
        assert "403" in reached(found, trainer)


def test_a_list_takes_the_place_of_what_all_have(server: E2bServer, trainer: str) -> None:
    with box(server, network={"allow_out": ["example.org"]}) as found:
        assert "403" in reached(found, trainer)
        assert found.get_info().network == {"allow_out": ["example.org"], "deny_out": []}
    asked = {"allow_out": [trainer], "deny_out": ["0.0.0.0/0"]}
    with box(server, network=asked, allow_internet_access=False) as found:
        assert reached(found, trainer) == "trainer"


def test_it_changes_while_the_sandbox_lives_and_goes_with_a_fork(
    server: E2bServer, trainer: str
) -> None:
    with box(server, allow_internet_access=False) as found:
        found.update_network({"allow_out": [trainer]})
        assert reached(found, trainer) == "trainer"
        (child,) = server.fork(found.sandbox_id, 1)
        copy = Sandbox.connect(child, **server.options)
        script = (
            f"no_proxy=x python3 -c \"import urllib.request as u; u.urlopen('http://{trainer}')\""
        )
        copy.commands.run(script)
        copy.kill()
        found.update_network({"allow_internet_access": False})
        assert "403" in reached(found, trainer)


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ({"allow_out": ["127.0.0.1:1"]}, "PENSTOCK_SESSION_NETWORK"),
        ({"allow_out": ["169.254.169.254"]}, "PENSTOCK_SESSION_NETWORK"),
        ({"allow_out": ["not a host"]}, "neither a name"),
        ({"deny_out": ["example.org"]}, "denyOut"),
    ],
)
def test_what_can_never_be_is_refused_at_the_door(
    server: E2bServer, network: dict[str, list[str]], why: str
) -> None:
    with pytest.raises(SandboxException, match=why):
        Sandbox.create(network=network, **server.options)


def test_another_proxy_is_not_used_and_not_passed_over(server: E2bServer) -> None:
    asked = {"templateID": "base", "network": {"egressProxy": {"address": "10.0.0.1:1080"}}}
    answer = httpx.post(
        f"{server.url}/sandboxes", json=asked, headers={"x-api-key": server.options["api_key"]}
    )
    assert answer.status_code == 501
    assert "egressProxy" in answer.json()["message"]
