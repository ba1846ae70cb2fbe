"""`python -m bench._plain_proxy PORT ENGINE`: passes each request on as it is, and its answer back.

What stands between a client and an engine costs at least this: the same server and the same client
as the gateway has, and nothing that is kept.
"""

import sys
from typing import Any

import httpx
import uvicorn


class Proxy:
    """An ASGI application in front of one engine."""

    def __init__(self, engine: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
        self._http = httpx.AsyncClient(
            base_url=engine, timeout=600, limits=limits, trust_env=False, verify=False
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        found = await self._http.request(
            scope["method"], scope["path"], content=body,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        headers = [(b"content-type", b"application/json")]
        start = {"type": "http.response.start", "status": found.status_code, "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": found.content})


if __name__ == "__main__":
    uvicorn.run(
        Proxy(sys.argv[2]), port=int(sys.argv[1]), log_config=None, access_log=False,
        lifespan="off", interface="asgi3",
    )  # fmt: skip
