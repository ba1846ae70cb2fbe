"""How a wire to a server is opened: an address, TLS, who we are, the database.

It waits for the server, so an event loop does it on a thread.
"""

import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from redis import exceptions
from redis.exceptions import RedisError, ResponseError

from ground.lua import Command
from ground.redis.connect import TIMEOUT, primary_of
from ground.redis.url import RedisTarget
from ground.redis.wire import Wire

W = TypeVar("W", bound=Wire)
# It may be unknown or forbidden. Without a password a server answers it with that, where it would
# hang up on scripts: they are longer than what it takes of strangers.
_NAME: Command = ("CLIENT", "SETINFO", "LIB-NAME", "penstock")
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def dial(target: RedisTarget, timeout: float, make: Callable[[socket.socket], W]) -> W:
    """A wire to a server, or to the primary that the Sentinels name."""
    within = min(timeout, TIMEOUT)
    opened = _connected(target, within)
    try:
        wire = make(opened)
        *replies, named = wire.converse([*_introduction(target), _NAME], within)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        if isinstance(named, RedisError) and not isinstance(named, ResponseError):
            raise named
    except BaseException:
        opened.close()
        raise
    return wire


def _connected(target: RedisTarget, within: float) -> socket.socket:
    if target.path:
        return _unix(target.path, within)
    host, port = primary_of(target, within) if target.kind == "sentinel" else target.nodes[0]
    try:
        opened = socket.create_connection((host, port), within)
    except OSError as problem:
        raise _failure(f"{host}:{port}", problem) from problem
    try:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return _context(target).wrap_socket(opened, server_hostname=host) if target.tls else opened
    except OSError as problem:
        opened.close()
        raise _failure(f"{host}:{port}", problem) from problem


def _unix(path: str, within: float) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(within)
        opened.connect(path)
    except OSError as problem:
        opened.close()
        raise _failure(path, problem) from problem
    return opened


def _failure(where: str, problem: OSError) -> RedisError:
    late = isinstance(problem, TimeoutError)
    kind = exceptions.TimeoutError if late else exceptions.ConnectionError
    return kind(f"connecting to {where}: {problem.strerror or problem}")


def _context(target: RedisTarget) -> ssl.SSLContext:
    """A TLS context of these settings, as redis-py would make it."""
    of = {name.removeprefix("ssl_"): value for name, value in target.options.items()}
    verify: Any = of.get("cert_reqs", "required")
    mode = _VERIFY.get(verify, verify)
    context = ssl.create_default_context()
    context.check_hostname = of.get("check_hostname", True) and mode != ssl.CERT_NONE
    context.verify_mode = mode
    for flag in of.get("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in of.get("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    if of.get("certfile"):
        context.load_cert_chain(of["certfile"], of.get("keyfile"), of.get("password"))
    authorities = [of.get(name) for name in ("ca_certs", "ca_path", "ca_data")]
    if any(authorities):
        context.load_verify_locations(*authorities)
    if of.get("min_version") is not None:
        context.minimum_version = of["min_version"]
    if of.get("ciphers"):
        context.set_ciphers(of["ciphers"])
    return context


def _introduction(target: RedisTarget) -> list[Command]:
    options = target.options
    if provider := options.get("credential_provider"):
        try:
            who = tuple(provider.get_credentials())
        except Exception as problem:  # whatever a cloud's library raises: the next try may do
            raise exceptions.ConnectionError(f"no credentials: {problem!r}") from problem
    else:
        user, password = options.get("username"), options.get("password")
        who = (user, password or "") if user else (password,) if password else ()
    commands: list[Command] = [("AUTH", *who)] if who else []
    if name := options.get("client_name"):
        commands.append(("CLIENT", "SETNAME", name))
    if target.db:
        commands.append(("SELECT", target.db))
    return commands
