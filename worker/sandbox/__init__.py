"""Where programs run: one protocol, several providers."""

from worker.sandbox.protocol import Sandbox

__all__ = ["Sandbox"]
