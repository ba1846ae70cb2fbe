"""A server of this machine, which programs may want to reach: a fixture, for conftest files."""

import http.server
import threading
from collections.abc import Iterator

import pytest


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"trainer")

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def trainer() -> Iterator[str]:
    """`host:port` of a server of this machine, which a sandbox may want to reach."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
