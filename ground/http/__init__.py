"""Every HTTP server of Penstock has these: a guard, a way to be served, and figures.

Apart from `ground` itself: most processes serve nothing. It needs the extra `serve`.
"""

from ground.http.figures import Sheet, exposition
from ground.http.guard import AsgiApp, HttpGuard
from ground.http.serve import listen, require_token, serve_on, serve_until_stopped

__all__ = [
    "AsgiApp",
    "HttpGuard",
    "Sheet",
    "exposition",
    "listen",
    "require_token",
    "serve_on",
    "serve_until_stopped",
]
