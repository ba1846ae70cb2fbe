"""As much of SkyRL-gym as our adapter and its page use: a stand-in, for tests without it."""

import importlib
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv

_registered: dict[str, tuple[str, dict[str, Any]]] = {}


def register(id: str, entry_point: str, kwargs: dict[str, Any] | None = None) -> None:
    _registered[id] = entry_point, kwargs or {}


def make(id: str, **given: Any) -> BaseTextEnv:
    entry_point, settings = _registered[id]
    module, _, name = entry_point.partition(":")
    made: BaseTextEnv = getattr(importlib.import_module(module), name)(**settings, **given)
    return made
