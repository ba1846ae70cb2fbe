"""Things that settings name: by a short name that we know, or by a dotted name of the user's."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from ground.errors import SettingError


def load_named(setting: str, name: str, known: Mapping[str, str]) -> Any:
    """What `name` stands for, imported now. Raises `SettingError`."""
    module, _, attribute = known.get(name, name).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as missing:
        if name in known:
            problem = f"{name!r} cannot be used here: {missing}"
        else:
            reason = missing if module else "it has no dot"
            ours = ", ".join(sorted(known))
            problem = f"{name!r} is neither of {ours} nor the dotted name of a callable: {reason}"
        raise SettingError(setting, problem) from missing
