"""The penstock command."""

from importlib.metadata import version as _installed

__all__ = ["__version__"]

__version__ = _installed("penstock")
