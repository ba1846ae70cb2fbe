"""The errors below the packages, as one tree.

    PenstockError
    ├── SettingError           a setting cannot work; names it and what would
    ├── ExtraMissing           a package is not installed; names the extra that brings it
    ├── RedisError
    │   ├── RedisUnavailable   nobody answers at that address, or not in time
    │   └── RedisUnfit         a server answers, and cannot be used as it is set up
    └── VersionError           a request, result or item of a schema we do not know

A message states the fact, the value, and what to do, in that order. Each room
grows its own branch from `PenstockError`.
"""

from typing import Any


class PenstockError(Exception):
    """The root: everything Penstock raises on purpose. It passes between processes as it is."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle would call its class with the message: most classes make theirs of other things.
        return _revived, (type(self), self.args, self.__dict__)


def _revived(kind: type[PenstockError], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class SettingError(PenstockError):
    """A setting cannot work as given."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting


class ExtraMissing(PenstockError, ImportError):
    """Something needs a package that a plain install does not bring."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra `{extra}`: pip install 'penstock-rl[{extra}]'")
        self.extra = extra


class RedisError(PenstockError):
    """Redis cannot serve Penstock."""


class RedisUnavailable(RedisError):
    """No server answers at the address, or it did not answer in time."""


class RedisUnfit(RedisError):
    """A server answers, but its version, role or configuration would lose data."""


class RedisFull(RedisUnfit):
    """The server is at its `maxmemory`, and refuses writes. What it has is safe."""


class VersionError(PenstockError):
    """A message carries a schema version that this release does not speak."""
