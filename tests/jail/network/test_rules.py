"""What a list admits: judged by the address that is dialled, never by a name alone."""

import shutil
import subprocess
import sys

import pytest

from jail.network import rules as rules_module
from jail.network.rules import (
    BadRule,
    Policy,
    address_of,
    ceiling,
    denials,
    is_own,
    is_public,
    name_of,
    outside,
    rule,
    rules,
)


def admits(
    allow: str, name: str, address: str, port: int, most: str = "public", deny: str = ""
) -> bool:
    policy = Policy(rules(allow.split(",")), rules(deny.split(",") if deny else []), ceiling(most))
    found = address_of(address)
    assert found is not None
    return policy.admits(name, found, port)


@pytest.mark.parametrize(
    ("allow", "name", "address", "port"),
    [
        ("api.example.org", "api.example.org", "8.8.8.8", 443),
        ("api.example.org", "api.example.org", "8.8.8.8", 80),
        ("api.example.org:8443", "api.example.org", "2606:4700::1", 8443),
        ("*.example.org", "a.b.example.org", "8.8.8.8", 443),
        ("8.8.8.0/24", "", "8.8.8.8", 53),
        ("8.8.8.0/24:1000-2000", "", "8.8.8.8", 1500),
        ("[2606:4700::1]:443", "", "2606:4700::1", 443),
        ("0.0.0.0/0", "anything.example.org", "1.1.1.1", 22),
        ("public:443", "", "1.1.1.1", 443),
    ],
)
def test_what_is_named_is_admitted(allow: str, name: str, address: str, port: int) -> None:
    assert admits(allow, name, address, port)


@pytest.mark.parametrize(
    ("allow", "name", "address", "port"),
    [
        ("api.example.org", "api.example.org", "8.8.8.8", 22),
        ("api.example.org", "example.org", "8.8.8.8", 443),
        ("api.example.org", "api.example.org.evil.org", "8.8.8.8", 443),
        ("*.example.org", "example.org", "8.8.8.8", 443),
        ("*.example.org", "badexample.org", "8.8.8.8", 443),
        ("8.8.8.0/24", "", "8.8.9.8", 443),
        ("public:443", "", "1.1.1.1", 80),
    ],
)
def test_what_is_not_named_is_refused(allow: str, name: str, address: str, port: int) -> None:
    assert not admits(allow, name, address, port)


INWARD = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.7", "172.16.3.3", "192.168.1.1", "100.64.0.1",
    "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.0.8", "198.18.0.1",
    "::1", "::", "::ffff:127.0.0.1", "::ffff:10.0.0.7", "::7f00:1", "fe80::1", "fd00::1",
    "fec0::1", "ff02::1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b:1::a00:7",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2", "fd00:ec2::254",
]  # fmt: skip


@pytest.mark.parametrize("address", INWARD)
def test_a_name_that_leads_inward_opens_nothing(address: str) -> None:
    """However it is allowed: by its name, by all addresses, by what is public."""
    for allow in ("rebound.example.org:*", "*.example.org:*", "0.0.0.0/0", "::/0", "public"):
        assert not admits(allow, "rebound.example.org", address, 6379)


def test_an_address_that_is_not_public_is_named_by_the_operator() -> None:
    trainer = "public,10.0.0.7:8000"
    assert admits("10.0.0.7:8000", "", "10.0.0.7", 8000, trainer)
    assert admits("trainer.lan:8000", "trainer.lan", "10.0.0.7", 8000, trainer)
    assert not admits("10.0.0.7", "", "10.0.0.7", 6379, trainer)
    assert not admits("10.0.0.0/8", "", "10.0.0.8", 8000, trainer)
    assert not admits("api.example.org", "api.example.org", "10.0.0.7", 8000, trainer)


def test_this_machine_is_named_one_address_at_a_time() -> None:
    assert not admits("127.0.0.1:8000", "", "127.0.0.1", 8000, "127.0.0.0/8")
    assert admits("127.0.0.1:8000", "", "127.0.0.1", 8000, "127.0.0.1:8000")
    assert not admits("127.0.0.1:8001", "", "127.0.0.1", 8001, "127.0.0.1:8000")


def test_the_operators_names_bound_those_of_a_session() -> None:
    assert admits("*.example.org", "a.example.org", "8.8.8.8", 443, "*.example.org:443")
    assert not admits("*.example.org", "a.example.org", "8.8.8.8", 80, "*.example.org:443")
    assert not admits("*.example.com", "a.example.com", "8.8.8.8", 443, "*.example.org:443")


def test_what_is_denied_is_taken_away() -> None:
    assert not admits("public", "", "8.8.8.8", 443, deny="8.8.8.0/24")
    assert admits("public", "", "8.8.4.4", 443, deny="8.8.8.0/24")


def test_a_name_cannot_be_taken_away() -> None:
    assert denials(["8.8.8.0/24", "[2001:4860::1]:443", "public:25"])
    for named in ("example.org", "*.example.org:*"):
        with pytest.raises(BadRule, match="is a name"):
            denials(["8.8.8.8", named])


def test_a_name_off_the_list_is_not_even_looked_up() -> None:
    policy = Policy(rules(["*.example.org"]), (), ceiling("public"))
    assert policy.may_look_up("a.example.org")
    assert not policy.may_look_up("secret.evil.org")
    addresses = Policy(rules(["8.8.8.8", "10.0.0.0/8"]), (), ceiling("public"))
    assert not addresses.may_look_up("secret.evil.org")


@pytest.mark.parametrize(
    "text", ["0x7f.1", "127.1", "2130706433", "0177.0.0.1", "a..b", "-a.org", "a b", "",
             "1.2.3.4.5", "example.0x7f", "é.org", "x" * 64 + ".org", "127.0.0.1%lo"]
)  # fmt: skip
def test_other_forms_of_an_address_are_neither_names_nor_addresses(text: str) -> None:
    assert name_of(text) == ""
    assert address_of(text) is None


def test_a_zone_and_a_mapped_address() -> None:
    assert address_of("fe80::1%eth0") is None
    assert str(address_of("::ffff:127.0.0.1")) == "127.0.0.1"


@pytest.mark.parametrize(
    "text", ["", "example.org:0", "example.org:65536", "example.org:9-8", "example.org:http",
             "http://example.org", "*", "*:443", "10.0.0.1/8", "[::1", "[::1]443", "0x7f.1:80",
             "::ffff:127.0.0.1", "example.org:1:2", f"{' ' * 70_000}example.org"]
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(BadRule):
        rule(text)


@pytest.mark.parametrize("text", ["0.0.0.0/0", "::/0", "192.0.0.0/8", "public,8.0.0.0/5"])
def test_the_operator_opens_what_is_private_by_its_own_network(text: str) -> None:
    with pytest.raises(BadRule, match="public"):
        ceiling(text)


def test_what_can_never_be_reached_is_found_at_the_door() -> None:
    most = ceiling("public,10.0.0.7:8000")
    assert outside(rules(["10.0.0.7:8000", "8.8.8.8", "a.org", "0.0.0.0/0"]), most) is None
    for never in ("127.0.0.1:6379", "192.168.0.0/16", "169.254.169.254:80", "[::1]:80"):
        assert outside(rules(["a.org", never]), most) is not None


def test_this_machine_knows_its_own_addresses() -> None:
    own, other = address_of("127.0.0.1"), address_of("8.8.8.8")
    assert own is not None
    assert is_own(own)
    assert other is not None
    assert is_public(other)


def test_addresses_of_this_machine_are_its_own_in_both_families() -> None:
    for text, own in [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("8.8.8.8", False),
                      ("2001:4860::1", False), ("224.0.0.1", False)]:  # fmt: skip
        address = address_of(text)
        assert address is not None
        assert is_own(address) is own, text


ROUTED_HERE = """
ip link set lo up
ip addr add 9.9.9.9/32 dev lo
ip route add blackhole 8.9.0.0/16
ip route add local 8.8.0.0/16 dev lo src 127.0.0.1
ip -6 route add local 2606:4700::/32 dev lo
exec "$@"
"""
OWN = """
import sys
sys.path.insert(0, sys.argv[1])
from rules import address_of, is_own
for text in sys.argv[2:]:
    print(text, is_own(address_of(text)))
"""


def test_what_is_routed_to_this_machine_is_its_own() -> None:
    """Whole networks can be, without being an address of any interface."""
    alone = ["unshare", "--user", "--map-root-user", "--net"]
    if not shutil.which("ip") or subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("this machine has no `ip`, or gives no network of one's own")
    folder = rules_module.__file__.rpartition("/")[0]
    asked = ["8.8.8.8", "8.9.0.1", "2606:4700::1", "2606:4701::1", "9.9.9.9", "9.9.9.8"]
    words = [*alone, "sh", "-ec", ROUTED_HERE, "sh", sys.executable, "-I", "-c", OWN, folder]
    ran = subprocess.run([*words, *asked], capture_output=True, text=True, check=True)
    own = [line.split()[0] for line in ran.stdout.splitlines() if line.endswith("True")]
    assert own == ["8.8.8.8", "2606:4700::1", "9.9.9.9"]
