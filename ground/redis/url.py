"""A Redis is described in one way, read from a URL or from a client someone made.

    redis://[user[:password]@]host[:6379][/db]          rediss:// with TLS
    unix://[user[:password]@]/path/to/redis.sock[?db=n]
    redis+sentinel://[user[:password]@]host[:26379],host,…/service[/db]
    redis+cluster://[user[:password]@]host[:6379],host,…

Options follow as a query: `ssl_ca_certs=…`, `ssl_ca_path=…`, `ssl_certfile=…`,
`ssl_keyfile=…`, `ssl_cert_reqs=none|optional|required`, `ssl_check_hostname=false`,
`client_name=…`, and `sentinel_username=…`, `sentinel_password=…`. Special characters in any
part are percent-encoded. A description never shows its passwords, and no error does.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ground.errors import SettingError

SETTING = "PENSTOCK_REDIS_URL"
_KINDS = {
    "redis": "single",
    "rediss": "single",
    "unix": "single",
    "redis+sentinel": "sentinel",
    "rediss+sentinel": "sentinel",
    "redis+cluster": "cluster",
    "rediss+cluster": "cluster",
}


@dataclass(frozen=True)
class RedisTarget:
    """A Redis to connect to. `ground.redis.connect` opens clients for it."""

    kind: str
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    tls: bool = False
    options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __str__(self) -> str:
        """The URL without its passwords, for logs and error messages."""
        if self.path:
            return f"unix://{quote(self.path)}" + (f"?db={self.db}" if self.db else "")
        scheme = ("rediss" if self.tls else "redis") + (
            "" if self.kind == "single" else f"+{self.kind}"
        )
        where = ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes
        )
        service = f"/{quote(self.service, safe='')}" if self.service else ""
        return f"{scheme}://{where}{service}" + ("" if self.kind == "cluster" else f"/{self.db}")


def parse_redis_url(url: str, setting: str = SETTING) -> RedisTarget:
    """Read a URL; `SettingError` says which part is wrong, and shows nothing that may be secret."""
    scheme, colon, rest = url.partition("://")
    scheme = scheme.strip().lower()
    if not colon or scheme not in _KINDS:
        known = ", ".join(f"{name}://" for name in _KINDS)
        raise SettingError(
            setting, f"the URL must begin with one of {known}; say redis://localhost:6379/0"
        )
    try:
        return _parse(_split(f"{scheme}://{rest}"))
    except _WrongPartError as wrong:
        raise SettingError(setting, str(wrong)) from None


class _WrongPartError(ValueError):
    """A sentence on what is wrong; never quotes a part where a password may have ended up."""


class _Parts(NamedTuple):
    scheme: str
    netloc: str
    path: str
    query: str


def _split(url: str) -> _Parts:
    # By hand: urllib refuses several hosts where one but the first is in brackets.
    scheme, _, rest = url.partition("://")
    rest, _, query = rest.partition("?")
    netloc, slash, path = rest.partition("/")
    parts = _Parts(scheme, netloc, slash + path, query)
    strayed = "@" in parts.query or ("@" in parts.path and parts.scheme != "unix")
    if strayed or "#" in url:
        raise _WrongPartError(
            "the URL cannot be read: write # / ? @ in a user name or password as %23 %2F %3F %40"
        )
    return parts


def _parse(parts: _Parts) -> RedisTarget:
    kind, tls = _KINDS[parts.scheme], parts.scheme.startswith("rediss")
    nodes: tuple[tuple[str, int], ...]
    userinfo, _, hosts = parts.netloc.rpartition("@")
    if parts.scheme == "unix":
        path, nodes, service, db = _socket_path(parts.path, hosts), (), "", ""
    else:
        path, nodes = "", _nodes(hosts, kind)
        service, db = _service_and_db(parts.path, kind)
    options, sentinel_options, query_db = _query(parts.query, kind, tls)
    number = _number(query_db or db or "0")
    if kind == "cluster" and number:
        raise _WrongPartError("a Redis Cluster has only database 0")
    options = _credentials(userinfo) | options
    return RedisTarget(kind, nodes, path, service, number, tls, options, sentinel_options)


def _socket_path(path: str, hosts: str) -> str:
    if hosts or not path.strip("/"):
        raise _WrongPartError("a unix:// URL needs an absolute path: unix:///run/redis.sock")
    return unquote(path)


def _credentials(userinfo: str) -> dict[str, Any]:
    user, _, password = userinfo.partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in given.items() if value}


def _nodes(hosts: str, kind: str) -> tuple[tuple[str, int], ...]:
    nodes = tuple(_node(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    if kind == "single" and len(nodes) > 1:
        raise _WrongPartError(
            "redis:// and rediss:// take one host; for several use redis+sentinel:// "
            "or redis+cluster://"
        )
    return nodes


def _node(host: str, default_port: int) -> tuple[str, int]:
    try:
        one = urlsplit(f"//{host}")
    except ValueError:
        raise _WrongPartError("the URL cannot be read: look at its host and brackets") from None
    try:
        port = default_port if one.port is None else one.port
    except ValueError:
        port = 0
    if not port:
        raise _WrongPartError("a port in the URL is not a number from 1 to 65535")
    if not one.hostname:
        raise _WrongPartError("the URL names no host")
    try:
        one.hostname.encode("idna")  # as it is looked up
    except UnicodeError:
        raise _WrongPartError(
            "no host can have the name in the URL: look for two dots in a row, or for more than "
            "63 characters between dots"
        ) from None
    return one.hostname, port


def _service_and_db(path: str, kind: str) -> tuple[str, str]:
    pieces = [unquote(piece) for piece in path.split("/") if piece]
    service = ""
    if kind == "sentinel":
        if not pieces:
            raise _WrongPartError("a sentinel URL ends with the service's name: …/mymaster")
        service = pieces.pop(0)
    if len(pieces) > 1:
        raise _WrongPartError("the URL's path has too many parts; it ends with the database: /0")
    return service, "".join(pieces)


def _query(query: str, kind: str, tls: bool) -> tuple[dict[str, Any], dict[str, Any], str]:
    options: dict[str, Any] = {}
    sentinel_options: dict[str, Any] = {}
    db = ""
    plain = query.replace("+", "%2B")  # a plus is no space
    for name, value in parse_qsl(plain, keep_blank_values=True):
        if name == "db":
            db = value
        elif name in _OPTIONS:
            options[name] = _read_option(name, value, tls)
        elif name in _SENTINEL_OPTIONS and kind == "sentinel":
            sentinel_options[name.removeprefix("sentinel_")] = value
        else:
            known = ", ".join(sorted(_OPTIONS.keys() | _SENTINEL_OPTIONS | {"db"}))
            raise _WrongPartError(f"the URL has an option unknown here; known are {known}")
    if "ssl_keyfile" in options and "ssl_certfile" not in options:
        raise _WrongPartError("the option ssl_keyfile needs ssl_certfile, whose key it is")
    if options.get("ssl_cert_reqs") == "none":
        options.setdefault("ssl_check_hostname", False)
    return options, sentinel_options, db


def _read_option(name: str, value: str, tls: bool) -> Any:
    if name.startswith("ssl_") and not tls:
        raise _WrongPartError(f"the option {name} needs TLS: rediss://")
    try:
        return _OPTIONS[name](value)
    except ValueError as wrong:
        raise _WrongPartError(f"the option {name} {wrong}") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise _WrongPartError("the database at the URL's end must be a number: /0")
    return int(text)


def _existing(path: str) -> str:
    if not os.access(path, os.R_OK):
        raise ValueError(f"names {path}, which cannot be read")
    return path


def _yes_or_no(text: str) -> bool:
    if text.lower() in ("1", "yes", "true", "on"):
        return True
    if text.lower() in ("0", "no", "false", "off"):
        return False
    raise ValueError("is neither true nor false")


def _requirement(text: str) -> str:
    if text not in ("none", "optional", "required"):
        raise ValueError("is none, optional or required")
    return text


_OPTIONS: dict[str, Callable[[str], Any]] = {
    "ssl_ca_certs": _existing,
    "ssl_ca_path": _existing,
    "ssl_certfile": _existing,
    "ssl_keyfile": _existing,
    "ssl_cert_reqs": _requirement,
    "ssl_check_hostname": _yes_or_no,
    "client_name": str,
}
_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}
