"""A server that answers as a script says: for states that no real one can be put into at will."""

import socketserver
import threading
from collections.abc import Mapping
from typing import Self

from ground.redis.url import RedisTarget, parse_redis_url


class ScriptedServer:
    """`ScriptedServer({b"PING": b"-LOADING …"})`; what it is not told it answers with +OK."""

    def __init__(self, replies: Mapping[bytes, bytes]) -> None:
        class Conversation(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while words := _command(self.rfile.readline, self.rfile.read):
                    self.wfile.write(replies.get(words[0].upper(), b"+OK") + b"\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Conversation)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def target(self) -> RedisTarget:
        return parse_redis_url(f"redis://127.0.0.1:{self._server.server_address[1]}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def bulk(text: str) -> bytes:
    return b"$%d\r\n%s" % (len(text), text.encode())


def _command(readline, read) -> list[bytes]:  # type: ignore[no-untyped-def]
    """One RESP array of bulk strings; empty at the end of the connection."""
    count = readline()[1:]
    words = []
    for _ in range(int(count or 0)):
        length = int(readline()[1:])
        words.append(read(length + 2)[:-2])
    return words
