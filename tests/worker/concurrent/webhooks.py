"""Webhooks of RQ 3, and who is called by them."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import rq

WEBHOOK = pytest.mark.skipif(not hasattr(rq, "Webhook"), reason="RQ 3 has webhooks")


def both(url: str) -> list[Any]:
    return [rq.Webhook(url, status, method="POST") for status in ("finished", "failed")]


@contextlib.contextmanager
def listener() -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """An HTTP server that remembers what was posted to it."""
    heard: list[tuple[str, Any]] = []

    class Ear(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ear) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
        server.shutdown()
        thread.join()
