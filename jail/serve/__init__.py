"""The embedded sandbox is served over HTTP, with Sandbox Fusion's contract. Each program is
answered once, or refused with its reason."""

from jail.serve.app import App
from jail.serve.requests import Line

__all__ = ["App", "Line"]
