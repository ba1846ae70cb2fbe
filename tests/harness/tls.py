"""TLS in front of a real server, which itself may have been built without it."""

import contextlib
import select
import socket
import socketserver
import ssl
from collections.abc import Iterator

import ground
from tests.harness.background import answering
from tests.harness.proxy import dial


@contextlib.contextmanager
def tls_front(upstream: ground.RedisTarget, context: ssl.SSLContext) -> Iterator[int]:
    """A port that speaks TLS as the context says, and passes on what it hears."""

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Refusals, of a certificate or of plain text, are what the tests are about.
            with (
                contextlib.suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as client,
                dial(upstream) as server,
            ):
                _carry(client, server)

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
    with answering(server):
        yield server.server_address[1]


def _carry(client: ssl.SSLSocket, server: socket.socket) -> None:
    """Until either end goes. One thread: two must not use one TLS connection."""
    others: dict[socket.socket, socket.socket] = {client: server, server: client}
    while True:
        # What is decrypted already, `select` does not see.
        ready = [client] if client.pending() else select.select(list(others), [], [])[0]
        for source in ready:
            if not (sent := source.recv(65536)):
                return
            others[source].sendall(sent)
