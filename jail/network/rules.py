"""The rules `host:port` say what a session may reach, and which addresses count as public.

A name is never trusted: what it resolves to is judged, and that address is dialled. So a name that
points to this machine, or to its neighbours, opens nothing. What is not public must be named by
address by the machine's operator.
"""

import ipaddress
import re
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

PUBLIC = "public"  # in place of a host: every public address
MOST_RULES = 128
_LONGEST = 300  # characters of a rule: the longest name, and its ports
_USUAL_PORTS = ((80, 80), (443, 443))
_ANY_PORT = ((1, 65535),)
_LABEL = r"(?!-)[a-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_A_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_PORT = re.compile(r"[1-9]\d{0,4}")
# Of rtnetlink(7).
_HEADER, _ANSWER = 16, 1 << 13  # bytes
_A_ROUTE, _GET_ROUTE, _REQUEST = 24, 26, 1
_DESTINATION, _TYPE_OF_ROUTE, _LOCAL = 1, 7, 2

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# What is not public: IANA's registries of special addresses, those among them that wrap an IPv4
# address, and all of IPv6 that is not assigned. Python's own list differs between its releases.
_SPECIAL = tuple(
    map(
        ipaddress.ip_network,
        ("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
         "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16",
         "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
         "::/3", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "4000::/2", "8000::/1"),
    )
)  # fmt: skip


class BadRule(ValueError):
    """A text that is no rule; the error says why."""


def name_of(text: str) -> str:
    """A host's name in its plain form; empty if it is none. A number is an address, or nothing."""
    name = text.lower().removesuffix(".")
    if len(name) > 253 or not _NAME.fullmatch(name) or _A_NUMBER.fullmatch(name.split(".")[-1]):
        return ""
    return name


def address_of(text: str) -> Address | None:
    """An address in its usual form; in another, such as `0x7f.1`, it is none."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:
            return None
        return found.ipv4_mapped or found
    return found


def is_own(address: Address) -> bool:
    """Whether it is this machine, by the kernel's routes: those of its own addresses, and any
    other that ends here (`ip route add local`)."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    target = address.packed
    route = struct.pack("=BBBBBBBBI", family, len(target) * 8, 0, 0, 0, 0, 0, 0, 0)
    attribute = struct.pack("=HH", 4 + len(target), _DESTINATION) + target
    size = _HEADER + len(route) + len(attribute)
    asked = struct.pack("=IHHII", size, _GET_ROUTE, _REQUEST, 1, 0) + route + attribute
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.send(asked)
        answer = kernel.recv(_ANSWER)
    (said,) = struct.unpack_from("=4xH", answer)  # an error if no way leads there
    return said == _A_ROUTE and answer[_HEADER + _TYPE_OF_ROUTE] == _LOCAL


def is_public(address: Address) -> bool:
    special = any(address in net for net in _SPECIAL if net.version == address.version)
    return not special and not is_own(address)


@dataclass(frozen=True)
class Rule:
    """A rule is one of: a name, with all below it or without; a network of addresses; what is
    public."""

    ports: tuple[tuple[int, int], ...]
    name: str = ""
    below: bool = False
    network: Network | None = None

    def admits(self, name: str, address: Address, port: int) -> bool:
        if not any(low <= port <= high for low, high in self.ports):
            return False
        if self.name:
            return self.may_admit(name)
        if self.network is None:
            return is_public(address)
        return address.version == self.network.version and address in self.network

    def may_admit(self, name: str) -> bool:
        """Whatever its address is."""
        if not self.name:
            return True
        return name.endswith(f".{self.name}") if self.below else name == self.name

    def asks_for(self, name: str) -> bool:
        """Whether a rule asks for it, by its name or with all others. A list of addresses is no
        reason to look names up."""
        everything = self.network is None or self.network.prefixlen == 0
        return everything and self.may_admit(name)

    def names(self, address: Address) -> bool:
        """Whether it opens an address that is not public: this machine's own one by one only."""
        if self.network is None or address not in self.network:
            return False
        return self.network.num_addresses == 1 or not is_own(address)

    def meets(self, other: "Rule") -> bool:
        """Whether some address and port is in both."""
        return (
            self.network is not None
            and other.network is not None
            and self.network.version == other.network.version
            and self.network.overlaps(other.network)
            and any(a <= d and c <= b for a, b in self.ports for c, d in other.ports)
        )


def rule(text: str) -> Rule:
    """Read a rule: `host`, `host:port`, `host:from-to` or `host:*`. A host is a name, `*.name`,
    an address, a network, or `public`; an IPv6 address with a port is in brackets. Raises
    `BadRule`."""
    if len(text) > _LONGEST:
        raise BadRule(f"{text!r:.100}: a rule of {len(text):,} characters; at most {_LONGEST}")
    host, ports = _split(text.strip())
    if host == PUBLIC:
        return Rule(ports or _ANY_PORT)
    try:
        network = ipaddress.ip_network(host)
    except ValueError:
        below = host.startswith("*.")
        if name := name_of(host.removeprefix("*.")):
            return Rule(ports or _USUAL_PORTS, name=name, below=below)
        raise BadRule(
            f"{text!r:.100}: {host!r:.100} is neither a name, an address nor a network. "
            "Write `api.example.org:443`, `*.example.org`, `10.0.0.7:8000` or `10.1.0.0/16:*`"
        ) from None
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped:
        raise BadRule(f"{text!r:.100}: write an IPv4 address as such")
    return Rule(ports or _ANY_PORT, network=network)


def _split(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise BadRule(
                f"{text!r:.100}: an IPv6 address ends with a bracket, then comes its port"
            )
        return host, _ports(text, rest[1:]) if rest else ()
    if text.count(":") > 1:  # an IPv6 address without a port
        return text, ()
    host, colon, ports = text.partition(":")
    return host, _ports(text, ports) if colon else ()


def _ports(text: str, asked: str) -> tuple[tuple[int, int], ...]:
    if asked == "*":
        return _ANY_PORT
    low, dash, high = asked.partition("-")
    found = port_of(low), port_of(high if dash else low)
    if not all(found) or found[0] > found[1]:
        raise BadRule(f"{text!r:.100}: {asked!r:.20} is no port, no range of ports, and not `*`")
    return (found,)


def port_of(text: str) -> int:
    """Read a port; 0 if it is none."""
    return int(text) if _PORT.fullmatch(text) and int(text) < 1 << 16 else 0


def rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    if len(texts) > MOST_RULES:
        raise BadRule(f"{len(texts)} rules; at most {MOST_RULES} are taken")
    return tuple(map(rule, texts))


def denials(texts: Sequence[str]) -> tuple[Rule, ...]:
    """The rules that take addresses away. A name cannot be: what it leads to has other names, and
    an address."""
    found = rules(texts)
    if named := next((each.name for each in found if each.name), ""):
        raise BadRule(f"deny: {named!r} is a name. Deny its addresses, or allow less")
    return found


def listed(text: str) -> tuple[str, ...]:
    """The rules in a setting."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def ceiling(text: str) -> tuple[Rule, ...]:
    """The most that the machine's sessions may be given. Raises `BadRule`."""
    found = rules(listed(text))
    for each in found:
        if each.network and _is_mixed(each.network):
            raise BadRule(
                f"{each.network} has public addresses and others. Write `public`, and name the "
                "others by their networks"
            )
    return found


def outside(allow: Sequence[Rule], limits: Sequence[Rule]) -> Network | None:
    """The network among these rules that can never be reached: it is not public, and the machine's
    rules do not name it."""
    for each in allow:
        if each.network and not _is_open(each.network) and not any(map(each.meets, limits)):
            return each.network
    return None


def _is_open(network: Network) -> bool:
    """Whether something in it may be public."""
    if network.num_addresses == 1:
        return is_public(network.network_address)
    within = (s for s in _SPECIAL if s.version == network.version and network.overlaps(s))
    return all(network.prefixlen < special.prefixlen for special in within)


def _is_mixed(network: Network) -> bool:
    return any(
        network.version == special.version
        and network.overlaps(special)
        and network.prefixlen < special.prefixlen
        for special in _SPECIAL
    )


@dataclass(frozen=True)
class Policy:
    """The policy of one session: its own rules, within those of its machine."""

    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    ceiling: tuple[Rule, ...]

    def may_look_up(self, name: str) -> bool:
        """Whether the name may be looked up: even the question tells somebody something."""
        asked = any(r.asks_for(name) for r in self.allow)
        return asked and any(r.may_admit(name) for r in self.ceiling)

    def admits(self, name: str, address: Address, port: int) -> bool:
        if address.is_unspecified or address.is_multicast:
            return False
        if not any(r.admits(name, address, port) for r in self.allow):
            return False
        if any(r.admits(name, address, port) for r in self.deny):
            return False
        within = [r for r in self.ceiling if r.admits(name, address, port)]
        return any(r.names(address) for r in within) or (bool(within) and is_public(address))
