"""A rollout's reach is bounded here: the file and the addresses that its caller names.

A generator reads that file and sends what it read to those addresses, as the server's user:
so the server's operator says where files may be, and may say which addresses may be named.
"""

import socket
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pydantic import SecretStr

from buffer.http.answers import Refused
from buffer.settings import BufferSettings

_ADDRESSES = ("remote_engine_url", "remote_buffer_url")


def check_reach(payload: dict[str, Any], settings: BufferSettings, own_url: str) -> None:
    """Refuse a payload that names a file or an address out of bounds."""
    if (file := payload.get("input_file")) is not None:
        _check_file(file, settings.input_folders)
    allowed = _listed(settings.engine_hosts.lower())
    for name in _ADDRESSES:
        if allowed and payload.get(name) is not None:
            _check_address(name, payload[name], {*allowed, urlsplit(own_url).netloc})


def _check_file(file: object, folders: str) -> None:
    try:
        lies_in = Path(file).resolve() if isinstance(file, str) and file else None
    except (ValueError, OSError, RuntimeError):  # a zero byte, a lone surrogate, a loop of links
        lies_in = None
    if lies_in is None:
        raise Refused(400, "input_file must be the name of a file")
    if not any(lies_in.is_relative_to(Path(one).resolve()) for one in _listed(folders)):
        raise Refused(
            403,
            f"input_file {str(file)[:200]!r} is in no folder that this server may read: "
            "start it with --inputs FOLDER, or set PENSTOCK_INPUT_FOLDERS",
        )


def check_readable(payload: dict[str, Any]) -> None:
    """Refuse a payload whose file is not there now, or cannot be read."""
    if (file := payload.get("input_file")) is None:
        return
    try:
        with open(file, encoding="utf-8"):
            pass
    except IsADirectoryError:
        pass  # a generator of the user's may read a folder
    except OSError as fault:
        raise Refused(
            400,
            f"input_file {file[:200]!r} cannot be read on this server, {socket.gethostname()}: "
            f"{fault.strerror or fault}",
        ) from None


def _check_address(name: str, url: object, allowed: set[str]) -> None:
    if not _hosts_of(url) & allowed:
        raise Refused(
            403, f"{name} {str(url)[:200]!r} is not in this server's PENSTOCK_ENGINE_HOSTS"
        )


def _hosts_of(url: object) -> set[str]:
    """The `host` and `host:port` of an address; nothing for what two libraries might read as
    two."""
    if not isinstance(url, str) or any(mark in url for mark in "\\ \t\r\n"):
        return set()
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        return set()
    host = parts.netloc.rpartition("@")[2].lower().removesuffix(f":{parts.port}")
    return {host, f"{host}:{port}"} - {"", f":{port}"}


def without_token(payload: dict[str, Any], token: SecretStr | None) -> dict[str, Any]:
    """The payload as it is kept: the server's token, where its caller wrote it into the URL of
    the buffer, is put back only for the generator."""
    url = payload.get("remote_buffer_url")
    if token is None or not isinstance(url, str):
        return payload
    try:
        parts = urlsplit(url)
    except ValueError:
        return payload
    shown = unquote(parts.password or parts.username or "")
    if shown != token.get_secret_value():
        return payload
    return {**payload, "remote_buffer_url": _with_user(parts, "")}


def with_token(url: str, token: SecretStr | None) -> str:
    """The buffer's URL for a generator, which may know of no other way to show a token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if token is None or "@" in parts.netloc:
        return url
    return _with_user(parts, f"any:{quote(token.get_secret_value(), safe='')}@")


def _with_user(parts: SplitResult, user: str) -> str:
    return parts._replace(netloc=user + parts.netloc.rpartition("@")[2]).geturl()


def _listed(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]
