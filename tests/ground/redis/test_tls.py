"""TLS, against a proxy that ends it in front of a real server (which itself may lack it)."""

import contextlib
import ssl
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from ground import RedisUnavailable
from ground.redis.check import open_checked
from ground.redis.connect import connect_async, target_of
from ground.redis.url import parse_redis_url
from tests.harness.tls import tls_front


class Certificate(NamedTuple):
    """Files: who vouches for it, and the certificate with its key."""

    authority: Path
    own: Path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return _certificate(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="module")
def others_certificate(tmp_path_factory):
    return _certificate(tmp_path_factory.mktemp("tls"), "elsewhere.example")


def _certificate(folder, name):
    made = Certificate(folder / "authority.pem", folder / "own.pem")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(made.authority)
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(made.own)
    return made


@contextlib.contextmanager
def served(upstream, certificate, *, clients=None):
    """A TLS port that shows this certificate, and may ask for one that `clients` vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.own)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients.authority)
    with tls_front(upstream, context) as port:
        yield f"rediss://127.0.0.1:{port}/0"


@pytest.fixture
def url(shared_server, real_redis, certificate):
    with served(shared_server.target, certificate) as url:
        yield url


def refusal(url):
    with pytest.raises(RedisUnavailable) as refused:
        open_checked(parse_redis_url(url), timeout=2)
    return str(refused.value)


async def reaches(url, real_redis):
    """Whether sync and async clients of the URL, and of its client's target, reach the server."""
    real_redis.set("mark", "here")
    client = open_checked(parse_redis_url(url))
    assert client.get("mark") == b"here"
    target = target_of(client)
    client.close()
    assert target.tls
    for described in (url, target):
        async_client = connect_async(described)
        assert await async_client.get("mark") == b"here"
        assert target_of(async_client) == target
        await async_client.aclose()
    return True


async def test_a_server_is_reached_with_its_authority_named(url, real_redis, certificate):
    assert await reaches(f"{url}?ssl_ca_certs={certificate.authority}", real_redis)


async def test_a_server_is_reached_where_nothing_is_checked(url, real_redis):
    assert await reaches(f"{url}?ssl_cert_reqs=none", real_redis)


def test_a_server_that_nobody_vouches_for_is_refused(url):
    assert "has a certificate that is not trusted here" in (said := refusal(url))
    assert "certificate verify failed" in said
    assert "ssl_ca_certs=FILE" in said
    assert "Start" not in said


async def test_a_certificate_of_another_name_is_refused_unless_told(
    shared_server, real_redis, others_certificate
):
    with served(shared_server.target, others_certificate) as url:
        url = f"{url}?ssl_ca_certs={others_certificate.authority}"
        assert "the host name that the certificate has" in refusal(url)
        assert await reaches(f"{url}&ssl_check_hostname=false", real_redis)


async def test_a_client_shows_its_own_certificate(
    shared_server, real_redis, certificate, others_certificate
):
    with served(shared_server.target, certificate, clients=others_certificate) as url:
        url = f"{url}?ssl_ca_certs={certificate.authority}"
        for shown in ("", f"&ssl_certfile={certificate.own}"):  # none, and one of another authority
            assert "If it asks clients for a certificate, name yours in" in refusal(url + shown)
        own = others_certificate.own
        assert await reaches(f"{url}&ssl_certfile={own}&ssl_keyfile={own}", real_redis)


def test_a_plain_client_at_a_tls_port_is_refused(url):
    said = refusal(url.replace("rediss", "redis"))
    assert "does not answer" in said
    assert "If the port speaks TLS, write rediss://; else start a Redis there" in said


def test_a_tls_client_at_a_plain_port_is_refused(shared_server):
    assert "does not answer" in refusal(shared_server.url.replace("redis:", "rediss:"))
