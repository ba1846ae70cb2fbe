"""`python -m bench._plain_proxy PORT ENGINE`: passes each request on as it is, and its answer back.

What stands between a client and an engine costs at least this: the same server and the same client
as the gateway has, and nothing that is kept.
"""

import sys
from typing import Any

import uvicorn

from ground.http.wires import Wires


class Proxy:
    """An ASGI application in front of one engine."""

    def __init__(self, engine: str) -> None:
        self._wires, self._engine = Wires(kept=4), engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        method = scope["method"]
        head = f"{method} {scope['path']} HTTP/1.1\r\nhost: engine\r\n".encode()
        wire = await self._wires.take(self._engine)
        with wire.closed_on_failure():
            wire.writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
            answer = await wire.read(method, 600)
        self._wires.give_back(self._engine, wire)
        headers = [(b"content-type", b"application/json")]
        start = {"type": "http.response.start", "status": wire.status, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": answer})


if __name__ == "__main__":
    uvicorn.run(
        Proxy(sys.argv[2]), port=int(sys.argv[1]), log_config=None, access_log=False,
        lifespan="off", interface="asgi3",
    )  # fmt: skip
