"""What several tests of `CodeQueue` stand on."""

import threading
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def raises_once(monkeypatch) -> Callable[[Any, str], None]:
    """What is called on the main thread next does not happen: as if a handler had raised there."""

    def patch(owner: Any, name: str) -> None:
        real, raised = getattr(owner, name), []

        def once(*args: Any, **options: Any) -> Any:
            if threading.current_thread() is threading.main_thread() and not raised:
                raised.append(name)
                raise KeyError("a signal's handler")
            return real(*args, **options)

        monkeypatch.setattr(owner, name, once)

    return patch
