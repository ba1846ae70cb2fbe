"""uni-agent's `ModalDeployment`, as a face over the lifecycle: its callers run unchanged.

    deployment = ModalDeployment(run_id="exp7", image="python:3.12")
    await deployment.start()
    await deployment.runtime.execute(Command(command=["ls"]))
    await deployment.stop()

The cap on starting sandboxes is the fleet's, whatever the number of workers. `start` keeps
its budget, and `stop` never raises and never forgets.
"""

import asyncio
import importlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import PurePath
from typing import Any, Protocol, Self

from ground import SettingError
from ground.recent import Recent
from worker.lifecycle.lifecycle import SandboxLifecycle
from worker.lifecycle.modal.provider import ModalProvider
from worker.lifecycle.provider import SandboxRef, SandboxSpec
from worker.lifecycle.sandbox import OpenSandbox
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.teardown import guarded

PORT = 8880
APP = "swe-rex"
_STARTING = 10_000  # more than start at once in one process


class Runtime(Protocol):
    """SWE-ReX's runtime, as far as a deployment uses it."""

    async def is_alive(self, *, timeout: float | None = None) -> Any: ...  # noqa: ASYNC109

    async def create_session(self, request: Any) -> Any: ...

    async def close(self) -> Any: ...


class ModalDeployment:
    """Constructor, `from_config`, `start`, `stop`, `is_alive` and `runtime` as upstream's."""

    def __init__(
        self,
        run_id: str = "",
        *,
        logger: logging.Logger | None = None,
        image: Any = "",
        startup_timeout: float = 300.0,
        runtime_timeout: float = 60.0,
        modal_sandbox_kwargs: Mapping[str, Any] | None = None,
        install_pipx: bool = True,
        deployment_timeout: float = 3600.0,
        proxy: str | None = None,
        lifecycle: SandboxLifecycle | None = None,
    ) -> None:
        self.run_id = run_id or uuid.uuid4().hex[:12]
        self._log = logger or logging.getLogger("penstock.worker")
        self._image = image
        self._startup_timeout = startup_timeout
        self._deployment_timeout = deployment_timeout
        self._runtime_timeout = runtime_timeout
        self._options = dict(modal_sandbox_kwargs or {})
        self._install_pipx = install_pipx
        self._proxy = proxy
        self._lifecycle = lifecycle
        self._sandbox: OpenSandbox | None = None
        self._runtime: Any = None

    @classmethod
    def from_config(cls, config: Any, run_id: str | None = None, **more: Any) -> Self:
        """Make one from upstream's `ModalDeploymentConfig`, or any object or mapping with its
        fields."""
        fields = dict(config) if isinstance(config, Mapping) else vars(config)
        known = (
            "image", "startup_timeout", "runtime_timeout", "modal_sandbox_kwargs", "install_pipx",
            "deployment_timeout", "proxy",
        )  # fmt: skip
        given = {name: fields[name] for name in known if fields.get(name) is not None}
        return cls(run_id or "", **given, **more)

    async def start(self, max_retries: int = 2) -> None:
        """Start a sandbox, and return when its runtime answers. It takes at most `max_retries`
        attempts, and never more than `PENSTOCK_START_ATTEMPTS`: upstream's callers ask for 5.
        Where it is started already, a warning and nothing else."""
        if self._sandbox is not None:
            self._log.warning("deployment %s is started already", self.run_id)
            return
        life = self._life()
        most = min(max_retries, life.settings.start_attempts)
        self._sandbox = await life.start(self._spec(), attempts=most)

    async def stop(self) -> None:
        """Never raises; what cannot be confirmed gone is left to the reaper."""
        sandbox, self._sandbox = self._sandbox, None
        runtime, self._runtime = self._runtime, None
        try:
            if runtime is not None:
                closed = await guarded(_closed(runtime), 10)
                if not closed.ok:
                    self._log.warning("deployment %s: its runtime did not close", self.run_id)
        finally:  # also where the caller is cancelled meanwhile
            if sandbox is not None and not await self._life().stop(sandbox):
                self._log.warning("deployment %s: the reaper will end it", self.run_id)

    async def is_alive(self, *, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The runtime's answer; false where there is no sandbox."""
        if self._sandbox is None or not await self._sandbox.is_alive():
            return False
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> Any:
        """The runtime of a deployment that was started; else `RuntimeError`, as upstream's."""
        if self._sandbox is None:
            raise RuntimeError(f"deployment {self.run_id} is not started: await start() first")
        provider = self._sandbox.provider
        if self._runtime is None and isinstance(provider, SweRexModal):
            self._runtime = provider.runtimes.pop(self._sandbox.id)
        return self._runtime

    def _life(self) -> SandboxLifecycle:
        if self._lifecycle is None:
            self._lifecycle = _shared(self._startup_timeout, self._deployment_timeout)
        return self._lifecycle

    def _spec(self) -> SandboxSpec:
        token = str(uuid.uuid4())
        image = str(self._image) if isinstance(self._image, str | PurePath) else ""
        options = {
            "command": ["/usr/bin/env", "bash", "-c", _server(token, self._install_pipx)],
            "encrypted_ports": [PORT],
            **({} if image or not self._image else {"image": self._image}),
            **({"proxy": self._proxy} if self._proxy else {}),
            **self._options,
            "swerex": {"auth_token": token, "timeout": self._runtime_timeout},
        }
        return SandboxSpec(image=image, options=options)


class SweRexModal(ModalProvider):
    """Modal sandboxes in which SWE-ReX's server answers; ready when its session is open."""

    name = "worker.lifecycle.modal.deployment.SweRexModal"

    def __init__(self, app: str = APP, *, client: Any = None) -> None:
        super().__init__(app, client=client)
        self.runtimes: dict[str, Runtime] = {}
        self._wanted: Recent[dict[str, Any]] = Recent(_STARTING)  # by the sandbox's name

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        options = dict(spec.options)
        self._wanted.put(name, options.pop("swerex", {}))
        return await super().create(replace(spec, options=options), name=name, tags=tags, ttl=ttl)

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        deadline = time.monotonic() + timeout
        ref = await super().open_runtime(ref, timeout)
        url = ref.meta["tunnels"][str(PORT)]
        runtime = self.connect(host=url, **self._wanted.pop(ref.name))
        while not await _answers(runtime):
            if time.monotonic() > deadline or not await self.is_alive(ref):
                raise TimeoutError(f"runtime at {url} did not start within {timeout:.0f} s")
            await asyncio.sleep(0.25)
        await runtime.create_session(self.session())
        self.runtimes[ref.id] = runtime
        return ref

    def connect(self, **wanted: Any) -> Runtime:
        """A client of the server inside."""
        runtime: Runtime = _swerex("runtime.remote").RemoteRuntime(**wanted)
        return runtime

    def session(self) -> Any:
        """The request for the shell that every later command runs in."""
        return _swerex("runtime.abstract").CreateBashSessionRequest(startup_timeout=60)

    async def close_runtime(self, ref: SandboxRef) -> None:
        runtime = self.runtimes.pop(ref.id, None)
        try:
            if runtime is not None:
                await runtime.close()
        finally:
            await super().close_runtime(ref)


async def _closed(runtime: Runtime) -> None:
    """Close as a task's own work, so that whatever it raises is raised there."""
    await runtime.close()


async def _answers(runtime: Runtime) -> bool:
    try:
        return bool(await runtime.is_alive(timeout=5))
    except Exception:  # noqa: BLE001 - nothing listens so far, and each version of the client raises its own error
        return False


def _swerex(module: str) -> Any:
    try:
        return importlib.import_module(f"swerex.{module}")
    except ImportError as missing:
        raise SettingError(
            "runtime", f"uni-agent's runtime is SWE-ReX's: pip install swe-rex ({missing})"
        ) from missing


def _server(token: str, install_pipx: bool) -> str:
    """Start SWE-ReX's server, fetched first where the image lacks it."""
    run = f"swerex-remote --port {PORT} --auth-token {token}"
    fetch = "python3 -m pip install pipx && " if install_pipx else ""
    return f"{run} || {{ {fetch}pipx run --spec swe-rex {run}; }}"


@cache
def _shared(startup_timeout: float, deployment_timeout: float) -> SandboxLifecycle:
    """The lifecycle of this process for a pair of timeouts, made at the first start."""
    settings = LifecycleSettings.load(
        startup_timeout=startup_timeout, sandbox_ttl=deployment_timeout
    )
    return SandboxLifecycle.from_settings(SweRexModal(), settings=settings)
