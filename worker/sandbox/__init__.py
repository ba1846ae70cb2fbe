"""Programs run in a sandbox: one protocol, several providers."""

from jail.protocol import Sandbox

__all__ = ["Sandbox"]
