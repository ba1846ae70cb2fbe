"""verl's execution pool as it is documented, with a function that does nothing."""

import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import calling
import ray

sys.path.append(str(Path(__file__).parents[1] / "gates_contenders"))
from ray_actor import TokenBucketWorker


class ExecutionWorker:
    def __init__(self, rate_limit: int):
        self.rate_limit_worker = TokenBucketWorker.options(
            name="rate-limiter", get_if_exists=True
        ).remote(rate_limit)

    def execute(self, fn, *fn_args, **fn_kwargs):
        with ExitStack() as stack:
            stack.callback(self.rate_limit_worker.release.remote)
            ray.get(self.rate_limit_worker.acquire.remote())
            return fn(*fn_args, **fn_kwargs)


def nothing(instance_id: str, code: str, timeout: int, language: str) -> str:
    return "220000.0\n"


def make(room: int) -> Callable[[], Awaitable[object]]:
    pool = ray.remote(ExecutionWorker).options(max_concurrency=room).remote(room)
    return lambda: pool.execute.remote(nothing, "instance", calling.CODE, 30, "python")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where the actors find all that
    # Nobody but us comes near this cluster: no token, which would be written to the home.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        ray.init(
            num_cpus=64, include_dashboard=False, log_to_driver=False,
            _node_ip_address="127.0.0.1", _temp_dir=folder,
        )  # fmt: skip
        calling.main(make)
        ray.shutdown()
