"""The penstock command."""

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    # Looked up when asked for: it would take most of the time before Ctrl-C is listened to.
    if name == "__version__":
        from importlib.metadata import version

        return version("penstock")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
