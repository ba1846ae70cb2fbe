"""envd's files over plain HTTP: the SDK's `files.write` and `files.read`.

A file is a stream. A request has a token, or a signed address.
"""

import base64
import hashlib
import hmac
import re
import tempfile
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import IO, cast

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ground.http.held import Held
from jail.sessions import Entry
from worker.e2b.boxes import Box
from worker.e2b.problems import Problem
from worker.e2b.wire import is_number, no_room

_CHUNK_OF_GZIP = 1 << 20
_LARGEST_FORM = 1 << 30
_IN_MEMORY = 256 << 10  # of each form; the rest of it is on disk
_SIGNATURE = re.compile(r"v1_[A-Za-z0-9+/]{43}")
_FORMS = Held(4 * _LARGEST_FORM, no_room)


async def download(request: Request, box: Box, user: str) -> Response:
    path = request.query_params.get("path", "")
    found = await box.session.stat(path, user=user)
    if found.kind == "folder":
        raise Problem("invalid_argument", f"{path} is a folder")
    pieces = box.session.read(path, user=user)
    try:
        first = await anext(pieces, b"")  # what cannot be read is refused before the answer begins
    except BaseException:
        await pieces.aclose()
        raise

    async def content() -> AsyncIterator[bytes]:
        async with aclosing(pieces):
            yield first
            async for piece in pieces:
                yield piece

    return StreamingResponse(content(), media_type="application/octet-stream")


async def upload(request: Request, box: Box, user: str) -> Response:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    path = request.query_params.get("path", "")
    if kind == b"application/octet-stream":
        if not path:
            raise Problem("invalid_argument", "path is missing")
        written = [await box.session.write(path, _plain(request), user=user)]
    elif kind == b"multipart/form-data":
        written = [
            await box.session.write(path or name, _pieces(content), user=user)
            async for name, content in _parts(request, options.get(b"boundary", b""))
        ]
    else:
        raise Problem("invalid_argument", "send multipart/form-data or application/octet-stream")
    return JSONResponse([_written(one) for one in written])


def signed(request: Request, token: str) -> bool:
    """Whether the address is signed with the token."""
    asked = request.query_params
    action = "write" if request.method == "POST" else "read"
    text = f"{asked.get('path', '')}:{action}:{asked.get('username', '')}:{token}"
    if expires := asked.get("signature_expiration", ""):
        text += f":{expires}"
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    right = hmac.compare_digest(asked.get("signature", "").encode(), f"v1_{digest}".encode())
    return right and can_be_signed(request)


def can_be_signed(request: Request) -> bool:
    """Whether the address has what may be a signature, whose time is not over."""
    asked = request.query_params
    expires = asked.get("signature_expiration", "")
    if expires and (not is_number(expires) or int(expires) < time.time()):
        return False
    return _SIGNATURE.fullmatch(asked.get("signature", "")) is not None


def _written(found: Entry) -> dict[str, str]:
    return {"name": found.name, "type": "file", "path": found.path}


async def _plain(request: Request) -> AsyncIterator[bytes]:
    if request.headers.get("content-encoding") != "gzip":
        async for chunk in request.stream():
            yield chunk
        return
    packed = zlib.decompressobj(wbits=31)
    try:
        async for chunk in request.stream():
            yield packed.decompress(chunk, _CHUNK_OF_GZIP)
            while packed.unconsumed_tail:
                yield packed.decompress(packed.unconsumed_tail, _CHUNK_OF_GZIP)
            if packed.unused_data:
                raise Problem("invalid_argument", "there is data after the end of the gzip content")
    except zlib.error as damage:
        raise Problem("invalid_argument", f"the content is not gzip: {damage}") from None
    if not packed.eof:
        raise Problem("invalid_argument", "the gzip content is cut short")


async def _parts(request: Request, boundary: bytes) -> AsyncIterator[tuple[str, IO[bytes]]]:
    """Each file of the form by its `filename`, which is its path; on disk until it is whole."""
    form, held = _Form(boundary), 0
    try:
        with _FORMS.some() as take:
            async for chunk in request.stream():
                held += len(chunk)
                take(len(chunk))
                if held > _LARGEST_FORM:
                    most = f"a form is at most {_LARGEST_FORM} bytes"
                    raise Problem("resource_exhausted", most, 413)
                form.write(chunk)
                while form.finished:
                    with form.finished[0][1]:
                        yield form.finished.pop(0)
            form.finalize()
    except MultipartParseError as damage:
        raise Problem("invalid_argument", f"the form cannot be read: {damage}") from None
    finally:
        form.close()


class _Form:
    """A form, as far as it has been read. Who takes a file from `finished` closes it."""

    def __init__(self, boundary: bytes) -> None:
        self.finished: list[tuple[str, IO[bytes]]] = []
        self._name = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._content = _spool()
        parser = MultipartParser(boundary, {
            "on_header_field": self._on_name, "on_header_value": self._on_value,
            "on_header_end": self._on_header, "on_part_data": self._on_data,
            "on_part_end": self._on_part,
        })  # fmt: skip
        self.write, self.finalize = parser.write, parser.finalize

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._content.write(data[start:end])

    def _on_part(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if options.get(b"name") == b"file":
            self._content.seek(0)
            self.finished.append((options.get(b"filename", b"").decode(), self._content))
        else:
            self._content.close()
        self._content = _spool()
        self._headers.clear()

    def close(self) -> None:
        for _, left in [*self.finished, ("", self._content)]:
            left.close()


def _spool() -> IO[bytes]:
    return cast(IO[bytes], tempfile.SpooledTemporaryFile(_IN_MEMORY))


async def _pieces(file: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := file.read(_CHUNK_OF_GZIP):
        yield piece
