"""A client of E2B describes a sandbox's network in its own way; here it becomes a list of hosts.

Upstream a sandbox reaches everything by default; here it reaches nothing. So `allowOut` is the
whole list, and `denyOut` takes away from what the operator gives to all.
"""

import ipaddress
from collections.abc import Mapping
from typing import Any

from jail.network.rules import listed
from jail.sessions import Network
from worker.e2b.problems import Problem

_LISTS = ("allowOut", "denyOut")
# Upstream these change what passes, or where it goes. Without them it would go as it should not.
_NOT_OFFERED = ("egressProxy", "rules", "dnsServers")


def wanted(asked: Mapping[str, Any], usual: str) -> Network | None:
    """The rules of a body's `network`, which `PUT /network` has as the body itself, and the flag
    beside it.

    `usual` is what the operator gives to those who name nothing.
    """
    lists = {name: _list(asked, name) for name in _LISTS}
    for name in _NOT_OFFERED:
        if asked.get(name):
            raise Problem("unimplemented", f"network.{name} is not offered: docs/guide/e2b.md")
    flag = asked.get("allow_internet_access", asked.get("allowInternetAccess"))
    if flag is not None and not isinstance(flag, bool):
        raise Problem("invalid_argument", "allow_internet_access is true or false")
    allow = lists["allowOut"]  # an address has all ports, a name those of the web: as upstream
    if flag is False and not allow:
        return None
    if allow:  # what is allowed wins over what is denied, as upstream
        return Network(tuple(allow))
    deny = lists["denyOut"]
    for host in deny:
        if not _is_network(host):
            raise Problem("invalid_argument", f"denyOut takes addresses and networks, not {host!r}")
    given = () if "0.0.0.0/0" in deny else listed(usual)
    return Network(given, tuple(deny)) if given else None


def _list(asked: Mapping[str, Any], name: str) -> list[str]:
    found = asked.get(name) or []
    if not isinstance(found, list) or not all(isinstance(host, str) for host in found):
        raise Problem("invalid_argument", f"network.{name} must be a list of texts")
    return found


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True
