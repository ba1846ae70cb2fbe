"""The `penstock` command starts, watches and changes everything below. stdout is data, stderr is
for people."""

from penstock.release import __version__

__all__ = ["__version__"]
