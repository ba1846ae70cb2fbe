"""A URL is read into a description; what is wrong is named, and no password is ever shown."""

import string
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ground import SettingError
from ground.redis.url import RedisTarget, parse_redis_url

# Long, and of characters that neither a sentence nor a host name has, so that finding
# one of them in an output means a leak.
SECRETS = st.text("çßøñ#/?@:[]%&=+ \\\"'", min_size=6, max_size=12).filter(
    lambda secret: any(letter in secret for letter in "çßøñ")
)
NAMES = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=12)
HOSTS = st.one_of(NAMES, st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str))
NODES = st.tuples(HOSTS, st.integers(1, 65535))
DBS = st.integers(0, 99)


def written(nodes):
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in nodes)


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("redis://localhost", RedisTarget("single", (("localhost", 6379),))),
        ("REDIS://localhost/3", RedisTarget("single", (("localhost", 6379),), db=3)),
        ("redis://localhost?db=4", RedisTarget("single", (("localhost", 6379),), db=4)),
        ("rediss://[::1]:7000/2", RedisTarget("single", (("::1", 7000),), db=2, tls=True)),
        ("unix:///run/redis.sock?db=2", RedisTarget("single", path="/run/redis.sock", db=2)),
        ("unix:///run/a%20b%3F", RedisTarget("single", path="/run/a b?")),
        (
            "redis+sentinel://one,two:2/main/1",
            RedisTarget("sentinel", (("one", 26379), ("two", 2)), service="main", db=1),
        ),
        ("redis+cluster://one,[::2]", RedisTarget("cluster", (("one", 6379), ("::2", 6379)))),
        ("rediss+cluster://one", RedisTarget("cluster", (("one", 6379),), tls=True)),
    ],
)
def test_each_form_of_url_is_read(url, target):
    assert parse_redis_url(url) == target


def test_credentials_are_read_and_percent_decoded():
    target = parse_redis_url("redis://al%40ice:p%23%2F%3F%40%3Aw@host")
    assert target.options == {"username": "al@ice", "password": "p#/?@:w"}
    assert parse_redis_url("redis://:only@host").options == {"password": "only"}
    assert parse_redis_url("unix://me:pw@/run/s").options == {"username": "me", "password": "pw"}


def test_options_are_read_as_what_they_are(tmp_path):
    authority = tmp_path / "ca.pem"
    authority.touch()
    target = parse_redis_url(
        f"rediss://host?ssl_ca_certs={authority}&ssl_check_hostname=no&client_name=me"
    )
    assert target.options == {
        "ssl_ca_certs": str(authority),
        "ssl_check_hostname": False,
        "client_name": "me",
    }


def test_not_checking_certificates_implies_not_checking_their_names():
    options = parse_redis_url("rediss://host?ssl_cert_reqs=none").options
    assert options == {"ssl_cert_reqs": "none", "ssl_check_hostname": False}


def test_sentinels_have_credentials_of_their_own():
    target = parse_redis_url(
        "redis+sentinel://:data@host/main?sentinel_username=u&sentinel_password=p"
    )
    assert target.options == {"password": "data"}
    assert target.sentinel_options == {"username": "u", "password": "p"}


def test_a_plus_is_no_space_in_any_part():
    target = parse_redis_url("redis+sentinel://:a+b@host/main?sentinel_password=c+d%20e")
    assert target.options == {"password": "a+b"}
    assert target.sentinel_options == {"password": "c+d e"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "must begin with one of redis://"),
        ("localhost:6379", "must begin with one of"),
        ("http://localhost", "must begin with one of"),
        ("redis://", "names no host"),
        ("redis://:6379", "names no host"),
        ("redis://one,,two", "names no host"),
        ("redis+cluster://one,,two", "names no host"),
        ("redis://redis..svc:6379", "no host can have the name"),
        ("redis+sentinel://one,.two/main", "no host can have the name"),
        (f"redis://{'a' * 64}", "no host can have the name"),
        ("redis://one,two", "take one host"),
        ("redis://host:port", "port"),
        ("redis://host:0", "port"),
        ("redis://host:65536", "port"),
        ("redis://[::1", "cannot be read"),
        ("redis://host/zero", "database"),
        ("redis://host/-1", "database"),
        ("redis://host?db=x", "database"),
        ("redis://host/0/1", "too many parts"),
        ("redis+sentinel://host", "service's name"),
        ("redis+cluster://host/1", "only database 0"),
        ("unix://run/redis.sock", "absolute path"),
        ("unix:///", "absolute path"),
        ("redis://host?timeout=3", "known are client_name, db"),
        ("redis://host?sentinel_password=x", "known are"),
        ("redis://host?ssl_cert_reqs=none", "needs TLS: rediss://"),
        ("rediss://host?ssl_cert_reqs=maybe", "none, optional or required"),
        ("rediss://host?ssl_check_hostname=maybe", "neither true nor false"),
        ("rediss://host?ssl_ca_certs=/no/such/file", "/no/such/file, which cannot be read"),
        ("rediss://host?ssl_keyfile=/dev/null", "needs ssl_certfile"),
        ("redis://:pass#word@host", "%23"),
        ("redis://:pass/word@host", "%2F"),
        ("redis://:pass?word@host", "%3F"),
    ],
)
def test_a_wrong_url_is_refused_in_one_sentence_that_names_the_setting(url, says):
    with pytest.raises(SettingError) as refusal:
        parse_redis_url(url)
    sentence = str(refusal.value)
    assert sentence.startswith("PENSTOCK_REDIS_URL: ")
    assert says in sentence
    assert "\n" not in sentence


def test_the_setting_that_holds_the_url_is_named():
    with pytest.raises(SettingError, match=r"^QUEUE_URL: ") as refusal:
        parse_redis_url("nonsense", "QUEUE_URL")
    assert refusal.value.setting == "QUEUE_URL"


@given(SECRETS, SECRETS, NODES, DBS)
def test_a_description_never_shows_its_passwords(password, sentinel_password, node, db):
    url = (
        f"redis+sentinel://me:{quote(password, safe='')}@{written([node])}/main/{db}"
        f"?sentinel_password={quote(sentinel_password, safe='')}"
    )
    target = parse_redis_url(url)
    assert target.options["password"] == password
    assert target.sentinel_options["password"] == sentinel_password
    for shown in (str(target), repr(target), f"{target}"):
        for secret in (password, sentinel_password):
            assert secret not in shown
            assert quote(secret, safe="") not in shown


@given(
    st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "redis+cluster"]),
    SECRETS,
    st.sampled_from(["", "host", "host:1", "host/0", "host/main", "/path", "host?db=1"]),
)
def test_no_error_shows_a_password_that_was_not_encoded(scheme, password, rest):
    for url in (f"{scheme}://me:{password}@{rest}", f"{scheme}://:{password}{rest}"):
        try:
            shown = str(parse_redis_url(url))
        except SettingError as refusal:
            shown = str(refusal)
            assert not [letter for letter in "çßøñ" if letter in shown]
        # Without an @ it is no password but a host; with one, it is never shown.
        if "@" in url:
            assert password not in shown


@given(st.booleans(), NODES, DBS)
def test_a_printed_single_target_can_be_read_back(tls, node, db):
    target = RedisTarget("single", (node,), db=db, tls=tls)
    assert parse_redis_url(str(target)) == target


@given(st.booleans(), st.lists(NODES, min_size=1, max_size=4), st.text("ab/ %é?", min_size=1), DBS)
def test_a_printed_sentinel_target_can_be_read_back(tls, nodes, service, db):
    target = RedisTarget("sentinel", tuple(nodes), service=service, db=db, tls=tls)
    assert parse_redis_url(str(target)) == target


@given(st.booleans(), st.lists(NODES, min_size=1, max_size=4))
def test_a_printed_cluster_target_can_be_read_back(tls, nodes):
    target = RedisTarget("cluster", tuple(nodes), tls=tls)
    assert parse_redis_url(str(target)) == target


@given(st.text("abc/ %é?@", min_size=1).map("/x{}".format), DBS)
def test_a_printed_socket_target_can_be_read_back(path, db):
    target = RedisTarget("single", path=path, db=db)
    assert parse_redis_url(str(target)) == target


def test_a_description_can_stand_in_a_set():
    assert len({parse_redis_url("redis://a"), parse_redis_url("redis://:pw@a")}) == 2
