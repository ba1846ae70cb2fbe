"""A sandbox that fails for the programs that say so: `python -m bench._masking_sandbox`.

It is `penstock sandbox serve`, but a program with `# outage: KIND.` in it gets no outcome, however
often it is sent. KIND is an HTTP status, or `SandboxError`, the answer of a Sandbox Fusion that
failed. Prints its address.
"""

import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from jail.jails import Jails
from jail.serve import App, Line
from jail.settings import SandboxSettings

OUTAGES = ("503", "500", "504", "SandboxError")
MARK = b"# outage: "

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Failing:
    """In front of the sandbox's application."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        if MARK in body:
            await _fail(body.partition(MARK)[2].partition(b".")[0].decode(), send)
            return
        read = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> Message:
            return read.pop() if read else await receive()

        await self._app(scope, again, send)


async def _fail(kind: str, send: Send) -> None:
    status = int(kind) if kind.isdigit() else 200
    said = {"detail": "out of order"} if kind.isdigit() else {"status": kind, "message": "no room"}
    body = json.dumps(said).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    settings = SandboxSettings.load()
    jails = Jails(settings.config(), concurrency=settings.sandbox_concurrency)
    app = Failing(App(jails, settings.limits(), Line(jails.concurrency, 4096, 600.0)))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        server.run(sockets=[listening])


if __name__ == "__main__":
    main()
