"""Every variable that is a setting, so that a misspelt one gets a warning."""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from types import ModuleType

from ground.settings import PREFIX, GroundSettings, Settings, variables

PACKAGES = (
    "ground",
    "limiter",
    "buffer",
    "gateway",
    "worker",
    "jail.images",
    "worker.lifecycle",
    "worker.queue",
    "worker.e2b",
    "jail",
    "jail.sessions",
    "penstock",
)
_NEAR = 0.8


def settings_models() -> Iterator[type[Settings]]:
    """Every settings model: each package keeps its own in a module called `settings`."""
    for package in PACKAGES:
        if importlib.util.find_spec(f"{package}.settings"):
            yield from _models_of(importlib.import_module(f"{package}.settings"))


def _models_of(module: ModuleType) -> Iterator[type[Settings]]:
    """The models that a module defines, not those that it imports."""
    for model in vars(module).values():
        mine = isinstance(model, type) and model.__module__ == module.__name__
        if mine and issubclass(model, Settings) and model is not Settings:
            yield model


def misspelt(environment: Iterable[str]) -> dict[str, str]:
    """Variables that no setting reads, each with the one it resembles; others are foreign."""
    found = {name for name in environment if name.upper().startswith(PREFIX)}
    if {name.upper() for name in found} <= set(variables(GroundSettings)):
        return {}  # the rule, which costs no import
    known = [name for model in settings_models() for name in variables(model)]
    ends = [name.removeprefix(PREFIX) for name in known]
    return {
        name: PREFIX + near[0]
        for name in sorted(found)
        if name.upper() not in known
        and (near := get_close_matches(name.upper().removeprefix(PREFIX), ends, 1, _NEAR))
    }
