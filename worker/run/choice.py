"""The sandbox that the settings name, one for each event loop."""

import asyncio
import logging
import weakref
from collections.abc import Callable

from ground.settings import load_named
from jail.errors import SandboxFailure, SandboxUnfit
from jail.models import CodeRequest
from jail.protocol import Sandbox
from worker.settings import WorkerSettings

log = logging.getLogger("penstock.worker")

# A provider is imported when it is chosen: an HTTP client costs a forked worker's every job.
PROVIDERS = {name: f"worker.run.choice.{name}" for name in ("fusion", "local", "shared")}

_SETTING = "PENSTOCK_SANDBOX"
_here: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[WorkerSettings, Sandbox]]
_here = weakref.WeakKeyDictionary()


def sandbox_here(settings: WorkerSettings) -> Sandbox:
    """This event loop's sandbox, with the connections it keeps."""
    made = _here.setdefault(asyncio.get_running_loop(), {})
    if settings not in made:
        made[settings] = make_sandbox(settings)
    return made[settings]


async def prove_sandbox_here(settings: WorkerSettings) -> None:
    """Run an empty program in the embedded sandbox. Raises `SandboxUnfit` if it cannot run here: it
    would fail every job.

    Of others nothing is asked: one that is away now is waited for by each job.
    """
    if settings.sandbox not in ("local", "shared"):
        return
    try:
        await sandbox_here(settings).run(CodeRequest(code=""))
    except SandboxUnfit:
        raise
    except SandboxFailure as failure:
        log.warning("the sandbox failed to run its first program: %s", failure)


def unreachable_sandboxes(loop: asyncio.AbstractEventLoop | None) -> list[str]:
    """The sandboxes of that event loop that cannot be reached, as far as is known."""
    made = _here.get(loop, {}) if loop else {}
    found = [getattr(sandbox, "unreachable", None) for sandbox in list(made.values())]
    return [name for unreachable in found if unreachable for name in unreachable()]


async def close_sandboxes_here() -> None:
    """Close this event loop's sandboxes; the next use makes new ones."""
    for sandbox in _here.pop(asyncio.get_running_loop(), {}).values():
        await sandbox.close()


def make_sandbox(settings: WorkerSettings) -> Sandbox:
    """A new sandbox as the settings say. Raises `SettingError`."""
    make: Callable[[WorkerSettings], Sandbox] = load_named(_SETTING, settings.sandbox, PROVIDERS)
    return make(settings)


def described(settings: WorkerSettings) -> str:
    """The chosen sandbox in a log: `local (level ns)`, `fusion (2 servers)`."""
    if settings.sandbox in ("local", "shared"):
        from jail.settings import SandboxSettings

        return f"{settings.sandbox} (level {SandboxSettings.load().sandbox_level})"
    if settings.sandbox == "fusion":
        servers = len(settings.sandbox_fusion_url.split())
        return f"fusion ({servers} server{'s' * (servers != 1)})"
    return settings.sandbox


def check_choice(settings: WorkerSettings) -> None:
    """Check the settings of the chosen sandbox, without making one. Raises `SettingError` for what
    every job would meet."""
    if settings.sandbox == "fusion":
        urls = settings.fusion_urls  # asked first: the import brings an HTTP client

        from jail.fusion.endpoints import run_code_url

        for url in urls:
            run_code_url(url, "PENSTOCK_SANDBOX_FUSION_URL")
    if settings.sandbox in ("local", "shared"):
        from jail.settings import SandboxSettings

        SandboxSettings.load()
    load_named(_SETTING, settings.sandbox, PROVIDERS)


def fusion(settings: WorkerSettings) -> Sandbox:
    from jail.fusion.client import SandboxFusion

    token = settings.sandbox_token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else None
    return SandboxFusion(settings.fusion_urls, headers=headers, margin=settings.sandbox_margin)


def local(_: WorkerSettings) -> Sandbox:
    from jail import LocalSandbox

    return LocalSandbox.from_settings()


def shared(_: WorkerSettings) -> Sandbox:
    from jail.sessions.shared import SharedSandbox

    return SharedSandbox()
