"""The client engines of this process: one for each Redis."""

from ground import RedisTarget, SettingError
from limiter.per_process import PerProcess
from worker.client_engine import ClientEngine

_engines = PerProcess[RedisTarget, ClientEngine]()
stop_all = _engines.stop_all


def client_engine(target: RedisTarget) -> ClientEngine:
    """This process's engine for a Redis; started on first use, and anew after a fork."""
    if target.kind == "cluster":
        raise SettingError(
            "redis_url",
            "RQ needs one primary: queues cannot live on a Cluster; name a single Redis for them",
        )
    return _engines.get(target, lambda: ClientEngine(target))
