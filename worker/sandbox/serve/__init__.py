"""The embedded sandbox over HTTP. It is `jail.serve`; this name stays for programs that use it."""

from jail.serve import (
    App,
    Line,
)

__all__ = [
    "App",
    "Line",
]
