"""The embedded sandbox over HTTP, with Sandbox Fusion's contract."""

from worker.sandbox.serve.app import App
from worker.sandbox.serve.line import Line

__all__ = ["App", "Line"]
