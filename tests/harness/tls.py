"""TLS in front of a real server, which itself may have been built without it."""

import contextlib
import select
import socket
import socketserver
import ssl
from collections.abc import Iterator
from typing import cast

from ground.redis.url import RedisTarget
from tests.harness.background import answering
from tests.harness.proxy import dial

_HANDSHAKE = b"\x16"  # the first byte of TLS


@contextlib.contextmanager
def tls_front(
    upstream: RedisTarget, context: ssl.SSLContext, *, port: int = 0, plain: bool = False
) -> Iterator[int]:
    """A port that speaks TLS as the context says, and passes on what it hears.

    With `plain` also for those who speak none.
    """

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Refusals, of a certificate or of plain text, are what the tests are about.
            with (
                contextlib.suppress(OSError),
                self.spoken() as client,
                dial(upstream) as server,
            ):
                _carry(client, server)

        def spoken(self) -> socket.socket:
            if plain and self.request.recv(1, socket.MSG_PEEK) != _HANDSHAKE:
                return cast(socket.socket, self.request)
            return context.wrap_socket(self.request, server_side=True)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", port), Connection)
    with answering(server):
        yield server.server_address[1]


def _carry(client: socket.socket, server: socket.socket) -> None:
    """Until either end goes. One thread: two must not use one TLS connection."""
    others: dict[socket.socket, socket.socket] = {client: server, server: client}
    while True:
        # What is decrypted already, `select` does not see.
        held = isinstance(client, ssl.SSLSocket) and client.pending()
        ready = [client] if held else select.select(list(others), [], [])[0]
        for source in ready:
            if not (sent := source.recv(65536)):
                return
            others[source].sendall(sent)
