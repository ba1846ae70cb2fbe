"""A server of the standard library that answers from a thread while a test needs it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from socketserver import ThreadingTCPServer


@contextmanager
def answering(server: ThreadingHTTPServer | ThreadingTCPServer) -> Iterator[None]:
    server.daemon_threads = True  # they end with their clients, for whom we do not wait
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
