"""An HTTP server's spans: one for each request, from its head to the last byte of the answer."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ground.tracing.spans import Span, span

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Any, Send], Awaitable[None]]

_UNSEEN = ("/livez", "/healthz", "/metrics")  # asked for every few seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})


def traced(app: AsgiApp) -> AsgiApp:
    """The application, with a span around each request: in its caller's trace, if that has one."""

    async def answer(scope: Message, receive: Any, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _UNSEEN:
            await app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        about = {"http.request.method": method, "url.scheme": scope.get("scheme", "http")}
        with span(method, about, kind="server", parent=_parent(scope)) as around:

            async def noting(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note_status(around, message["status"])
                await send(message)

            try:
                await app(scope, receive, noting)
            finally:
                if route := _route(scope):
                    around.set("http.route", route)
                    around.rename(f"{method} {route}")

    return answer


def _note_status(around: Span, status: int) -> None:
    around.set("http.response.status_code", status)
    if status >= 500:
        around.failed(str(status))


def _parent(scope: Message) -> str:
    found = [value for name, value in scope["headers"] if name == b"traceparent"]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _route(scope: Message) -> str:
    """The path as the application declares it, which names no sandbox and no task."""
    route = getattr(scope.get("route"), "path", "")
    if route:
        return str(route)
    path: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path if "endpoint" in scope else ""
