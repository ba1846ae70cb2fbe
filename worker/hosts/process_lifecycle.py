"""The lifecycle by which a host's adapters open session sandboxes in this process."""

from functools import lru_cache

from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.settings import LifecycleSettings


@lru_cache(8)
def lifecycle_here(provider: str = "") -> SandboxLifecycle:
    """The lifecycle of a provider, on the Redis that the environment names; without a provider that
    of `PENSTOCK_SESSION_PROVIDER`. Raises `SettingError` without a Redis."""
    return SandboxLifecycle.from_settings(provider or LifecycleSettings.load().session_provider)
