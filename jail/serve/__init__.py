"""The embedded sandbox over HTTP, with Sandbox Fusion's contract."""

from jail.serve.app import App
from jail.serve.requests import Line

__all__ = ["App", "Line"]
