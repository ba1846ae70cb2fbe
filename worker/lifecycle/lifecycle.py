"""Session sandboxes from start to end: start many, exceed nothing, leak none.

However many processes do this, at most `PENSTOCK_MAX_STARTING` of their sandboxes are starting at
once. Whatever happens to a process, its sandboxes are ended.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Any

from ground import SettingError
from ground.process import aside, from_thread, on_process_loop, process_loop
from ground.redis.connect import AnyRedis, target_of
from ground.settings import GroundSettings
from limiter import LimiterSettings, StartingGate
from worker.lifecycle.box import Phase, checked, held
from worker.lifecycle.errors import SandboxLost, shown
from worker.lifecycle.keeper import Keeper
from worker.lifecycle.provider import Provider, SandboxSpec, provider_named
from worker.lifecycle.registry.registry import Registry
from worker.lifecycle.sandbox import OpenSandbox, SyncSandbox
from worker.lifecycle.sessions import Sessions
from worker.lifecycle.settings import LifecycleSettings
from worker.lifecycle.starting import Start

log = logging.getLogger("penstock.worker")

GATE = "starting"


class SandboxLifecycle:
    """A lifecycle opens sandboxes of one provider, for one run. Constructing it starts nothing.

        lifecycle = SandboxLifecycle("redis://10.0.0.5", "modal")

        async with lifecycle.open(SandboxSpec(image="python:3.12")) as sandbox:
            result = await sandbox.exec(["python", "-c", "print(1)"])
        async with lifecycle.session("sample-7") as sandbox:    # the same one at each turn
            ...

    provider      a name of `docs/guide/sessions.md`, the dotted name of a callable, or a `Provider`
    run           a namespace; by default PENSTOCK_RUN
    max_starting  sandboxes of the whole fleet that may be starting at once; by default
                  PENSTOCK_MAX_STARTING
    """

    def __init__(
        self,
        redis: AnyRedis,
        provider: Provider | str,
        *,
        run: str | None = None,
        settings: LifecycleSettings | None = None,
        max_starting: int | None = None,
    ) -> None:
        self.settings = settings or LifecycleSettings.load()
        self.provider: Provider = (
            provider_named(provider) if isinstance(provider, str) else provider
        )
        self.run = run or GroundSettings.load().run
        self.target = target_of(redis)
        limit = LimiterSettings.load().max_starting if max_starting is None else max_starting
        lease = self.settings.sandbox_lease
        gates = [StartingGate(self.target, GATE, limit=limit, lease=lease)]
        if self.settings.max_starting_run is not None:
            own = StartingGate(
                self.target, GATE, limit=self.settings.max_starting_run, lease=lease, run=self.run
            )
            # Take the fleet-wide permit last, so nobody holds one while queueing for its run's.
            gates.insert(0, own)
        self.registry = Registry(self.target, self.run, fleet=self.settings.fleet)
        self.keeper = Keeper(self.provider, self.registry, gates, self.settings)
        self._sessions = Sessions(self.keeper, self.start)

    @classmethod
    def from_settings(cls, provider: Provider | str, **options: Any) -> "SandboxLifecycle":
        """Make a lifecycle on the Redis that the environment names."""
        ground = GroundSettings.load()
        if ground.redis_url is None:
            raise SettingError(
                "PENSTOCK_REDIS_URL", "is not set: sandboxes are registered in a Redis that all "
                "workers share"
            )  # fmt: skip
        return cls(ground.redis_url.get_secret_value(), provider, **options)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec | None = None) -> AsyncIterator[OpenSandbox]:
        """A sandbox for the length of the block; raises `SandboxLost` if it is taken from us."""
        sandbox = await self.start(spec)
        try:
            async with held(sandbox._box):
                yield sandbox
        finally:
            await self.stop(sandbox)

    async def start(
        self, spec: SandboxSpec | None = None, *, attempts: int | None = None, instance: str = "",
        opening: str = "",
    ) -> OpenSandbox:  # fmt: skip
        """Start a sandbox for a caller that cannot use a block; `stop` ends it. Cancelled at any
        moment, a start leaves nothing behind."""
        begun = Start(self.keeper, spec or SandboxSpec(), instance, attempts, opening)
        loop = process_loop()
        future = asyncio.run_coroutine_threadsafe(begun.run(), loop)
        try:
            box = await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            loop.call_soon_threadsafe(begun.abandon)
            raise
        return OpenSandbox(self.provider, box)

    async def stop(self, sandbox: OpenSandbox) -> bool:
        """Never raises: whether it is confirmed gone; if not, the reaper has it by now."""
        # Shielded: also a caller that is cancelled meanwhile has its sandbox ended.
        return await asyncio.shield(self.keeper.let_go(sandbox._box))

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """STARTING permits for sandboxes that you start yourself, without a record."""
        permits = await self.keeper.permits()
        try:
            yield
        finally:
            for permit in permits:
                permit.release()

    @asynccontextmanager
    async def recorded(
        self, name: str = "", *, ttl: float | None = None
    ) -> AsyncIterator[OpenSandbox]:
        """Record a creation that you do yourself, at this lifecycle's provider.

            async with lifecycle.recorded(ttl=600) as sandbox:
                await make_one(sandbox.name, sandbox.tags)

        STARTING permits and a record come before the block. After it the sandbox is ready, and
        `stop` ends it. If the block fails, what it has made is ended, unless the provider says
        that one of that name existed.
        """
        settings, permits = self.settings, await self.keeper.permits()
        patience = settings.init_wall_budget
        seconds = settings.attempt(patience)
        async with self.keeper.recorded(
            permits, name=name, instance="", seconds=seconds, ttl=ttl, patience=patience
        ) as box, held(box), asyncio.timeout(box.left()):  # fmt: skip
            box.is_asked_for()
            try:
                yield OpenSandbox(self.provider, box)
            except Exception as problem:
                await self.keeper.failed(box, problem)
                raise
            box.ref = await on_process_loop(self.provider.find(box.name))
            if box.ref is None:
                raise SandboxLost(box.name, "it was not made under this name, or has ended")
            box.phase = Phase.OPEN

    async def take_up(self, living: Mapping[str, float]) -> list[OpenSandbox]:
        """Keep sandboxes that live at the provider, by name with the seconds that they still
        have, whichever process opened them. Not those that another one starts or ends. One
        whose record was lost with Redis's data gets a new record."""
        found = [
            box
            for name, seconds in living.items()
            if (box := await on_process_loop(self.keeper.found_again(name, seconds))) is not None
        ]
        rows = [(box.name, box.fence, self.keeper.lease) for box in found]
        held = await aside(lambda: self.registry.renew(rows)) if rows else []
        kept = [box for box, is_held in zip(found, held, strict=True) if is_held]
        for box in kept:
            self.keeper.keep(box)
        return [OpenSandbox(self.provider, box) for box in kept]

    async def prolong(self, sandbox: OpenSandbox, seconds: float) -> bool:
        """Have the provider end it this many seconds from now. False if another process has
        taken it."""
        box, until = sandbox._box, seconds + self.settings.sandbox_grace
        return await aside(lambda: self.registry.prolong(box.name, box.fence, until))

    def session(
        self, instance_id: str, spec: SandboxSpec | None = None
    ) -> AbstractAsyncContextManager[OpenSandbox]:
        """`async with lifecycle.session("sample-7") as sandbox`: the sandbox of that name, opened
        by the first who asks, on whichever worker; ended when it has idled for too long."""
        return self._sessions.use(instance_id, spec or SandboxSpec())

    async def end_session(self, instance_id: str) -> bool:
        """End it now. Returns whether there was one. Its users get `SandboxLost`, as does a caller
        that is opening it."""
        return await self._sessions.end(instance_id)

    @property
    def sync(self) -> "SyncLifecycle":
        """A face of the lifecycle for code that blocks."""
        return SyncLifecycle(self)

    async def close(self) -> None:
        """Free connections, the provider's too; what is open stays open."""
        try:
            await on_process_loop(self.provider.close())
        finally:
            self.registry.close()


@asynccontextmanager
async def open_sandbox(
    provider: Provider | str,
    spec: SandboxSpec | None = None,
    *,
    redis: AnyRedis | None = None,
    **options: Any,
) -> AsyncIterator[OpenSandbox]:
    """Open a sandbox without a lifecycle to keep: `async with open_sandbox("local") as sandbox`."""
    lifecycle = (
        SandboxLifecycle.from_settings(provider, **options)
        if redis is None
        else SandboxLifecycle(redis, provider, **options)
    )
    try:
        async with lifecycle.open(spec) as sandbox:
            yield sandbox
    finally:
        try:
            if isinstance(provider, str):
                await on_process_loop(lifecycle.provider.close())
        except Exception as problem:  # noqa: BLE001 - what happened to the block is what counts
            log.warning("provider %s was not closed: %s", provider, shown(problem))
        finally:
            lifecycle.registry.close()


class SyncLifecycle:
    """The lifecycle for threads, as `lifecycle.sync` has it: its methods block."""

    def __init__(self, lifecycle: "SandboxLifecycle") -> None:
        self._lifecycle = lifecycle

    @contextmanager
    def open(self, spec: SandboxSpec | None = None) -> Iterator[SyncSandbox]:
        sandbox = from_thread(self._lifecycle.start(spec))
        try:
            with checked(sandbox._box):
                yield sandbox.sync
        finally:
            from_thread(self._lifecycle.stop(sandbox))

    def start(self, spec: SandboxSpec | None = None, **options: Any) -> SyncSandbox:
        return from_thread(self._lifecycle.start(spec, **options)).sync

    def stop(self, sandbox: SyncSandbox) -> bool:
        return from_thread(self._lifecycle.stop(sandbox._sandbox))

    @contextmanager
    def session(self, instance_id: str, spec: SandboxSpec | None = None) -> Iterator[SyncSandbox]:
        sessions = self._lifecycle._sessions
        sandbox = from_thread(sessions.enter(instance_id, spec or SandboxSpec()))
        try:
            with checked(sandbox._box):
                yield sandbox.sync
        finally:
            from_thread(sessions.leave(sandbox))

    def end_session(self, instance_id: str) -> bool:
        return from_thread(self._lifecycle.end_session(instance_id))

    def close(self) -> None:
        from_thread(self._lifecycle.close())
