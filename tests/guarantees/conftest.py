"""The scripted sandbox of the worker's tests, here too."""

from tests.worker.conftest import fusion

__all__ = ["fusion"]
