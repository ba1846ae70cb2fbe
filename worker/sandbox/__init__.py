"""Where programs run: one protocol, several providers."""

from jail.protocol import Sandbox

__all__ = ["Sandbox"]
