"""Session sandboxes on this machine: each a jail of its own, kept by a process of its own."""

from worker.lifecycle.local.provider import LocalProvider

__all__ = ["LocalProvider"]
