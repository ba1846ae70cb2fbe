"""Trajectories' sessions live here: one that is found elsewhere has forgotten what it did.

A session ends when it idles for too long or its sandbox dies, and the next call opens a new
one. Run there, a program would fail for what is missing, as if the model had got it wrong.
"""

import contextlib
import logging
import threading
import weakref
from functools import lru_cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from redis.exceptions import RedisError

from ground import PenstockError
from ground.process import PerProcess
from ground.recent import Recent
from ground.redis.connect import AnyRedis
from ground.redis.url import RedisTarget
from ground.settings import GroundSettings
from jail.errors import SandboxFailure
from jail.models import CodeResult
from worker.tool.config import redis_here

if TYPE_CHECKING:
    from worker.lifecycle.registry.registry import Registry

Redis = AnyRedis | None

_MOST = 10_000  # trajectories remembered; a host never says that one has ended


class Sessions:
    """The sessions of one tool's trajectories."""

    def __init__(self, redis: Redis = None) -> None:
        self._redis = redis
        self._homes: Recent[str] = Recent(_MOST)
        self._guard = threading.Lock()  # calls may come from threads

    def kept_by_host(self, trajectory: str, agent_data: Any) -> str:
        """The name of the session that the host's object for the trajectory keeps."""
        if not hasattr(agent_data, "penstock_session"):
            with contextlib.suppress(AttributeError):  # a host whose object takes no more
                agent_data.penstock_session = TrajectorySession(trajectory, self._redis)
        kept = getattr(agent_data, "penstock_session", None)
        return kept.name if kept else str(trajectory)

    def kept_by(self, instance: dict[str, Any], instance_id: str) -> str:
        """The name of the session that an instance of the tool keeps."""
        with self._guard:
            if instance["session"] is None:
                instance["session"] = TrajectorySession(instance_id, self._redis)
            return str(instance["session"].name)

    def check(self, session: str, result: CodeResult) -> None:
        """Raise `SandboxFailure` if an earlier call of the session ran in another sandbox."""
        here = result.executor_pod_name
        if not here or result.error_kind == "infrastructure":
            return
        with self._guard:
            home = self._homes.use(session) or here
            self._homes.put(session, home)
        if home != here:
            raise SandboxFailure(
                f"the sandbox {home} of session {session} has ended, with the state of earlier "
                "calls. PENSTOCK_SESSION_IDLE and PENSTOCK_SANDBOX_TTL set its lifetime",
                reason="session_lost",
            )


log = logging.getLogger("penstock.tool")

_FAREWELL = 2.0  # seconds that a process's end waits for what its sessions' ends have to say
_PATIENCE = 5.0


class TrajectorySession:
    """A trajectory's session. Its name is of one try alone: played again, a trajectory finds
    nothing of the last time. Names of trajectories recur, verl's too if it is set to be
    deterministic.

    One that is copied, or sent to another process, is ended by its idle time: nobody knows
    then who is the last to hold it.
    """

    def __init__(self, trajectory: str, redis: Redis) -> None:
        self.name = f"{trajectory}-{uuid4().hex[:12]}"
        self._over: Any = weakref.finalize(
            self, _ends.get("ends", _Ends).over.put, (redis, self.name)
        )
        self._over.atexit = False

    def __reduce__(self) -> tuple[Any, ...]:
        if self._over is not None:
            self._over.detach()
        return object.__new__, (type(self),), {"name": self.name, "_over": None}


class _Ends:
    """A thread leaves the sandboxes of sessions that are over to the workers' reaper.

    In a thread of its own, with a queue that takes no lock: a session may end anywhere, in the
    garbage collector too.
    """

    stopped = False  # as `PerProcess` asks; it sets it in a forked child

    def __init__(self) -> None:
        self.over: SimpleQueue[tuple[Redis, str] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="penstock-ends", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.over.put(None)
        self._thread.join(_FAREWELL)

    def _work(self) -> None:
        while (ended := self.over.get()) is not None:
            redis, session = ended
            try:
                _end(_registry(redis_here(redis), GroundSettings.load().run), session)
            except (PenstockError, RedisError, OSError) as failure:
                log.info(
                    "session %s could not be ended now; it ends after PENSTOCK_SESSION_IDLE: %s",
                    session,
                    failure,
                )
            except Exception:  # after any error, the later sessions must still end
                log.exception(
                    "session %s could not be ended now; it ends after PENSTOCK_SESSION_IDLE",
                    session,
                )


_ends = PerProcess[str, _Ends]()


@lru_cache(4)
def _registry(target: RedisTarget, run: str) -> "Registry":
    from worker.lifecycle.registry.registry import Registry

    return Registry(target, run, patience=_PATIENCE)


def _end(registry: "Registry", session: str) -> None:
    """End the session here. That does nothing if the workers keep their sessions elsewhere."""
    from worker.lifecycle.settings import LifecycleSettings

    if name := registry.session_of(session):
        settings = LifecycleSettings.load()
        # Its opener may still be at work, for a call that nobody waits for any more.
        unheard = settings.startup_timeout + settings.sandbox_grace
        registry.condemn(name, "", "its trajectory is over", gone_after=unheard)
