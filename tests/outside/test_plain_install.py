"""The wheel without extras: few packages, and what a machine of a fleet does with them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import leash
from tests.harness.servers import PrivateRedis
from tests.harness.wheel import built

MOST = 20
pytestmark = [pytest.mark.outside, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def plain() -> Iterator[Path]:
    """The `bin` folder of an environment with the wheel alone."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        did(sys.executable, "-m", "venv", f"{folder}/venv")
        did(f"{folder}/venv/bin/pip", "--quiet", "install", built(Path(folder)))
        yield Path(folder, "venv", "bin")


def did(*words: str | Path, cwd: Path | str = "/", **variables: str) -> str:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(Path.home())} | variables
    ran = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_it_brings_few_packages(plain: Path) -> None:
    listed = did(plain / "pip", "list", "--format=freeze").split()
    packages = {line for line in listed if not line.startswith(("pip=", "setuptools="))}
    assert len(packages) <= MOST, sorted(packages)


def test_jobs_pass_from_its_queue_through_rqs_own_command(
    plain: Path, shared_server: PrivateRedis
) -> None:
    variables = {"PENSTOCK_REDIS_URL": shared_server.url, "PENSTOCK_SANDBOX": "local"}
    words = [plain / "rq", "worker", "--worker-class", "worker.ConcurrentWorker", "--serializer",
             "rq.serializers.JSONSerializer", "--url", shared_server.url, "code"]  # fmt: skip
    worker = leash.start([*map(str, words)], env=os.environ | variables, cwd="/")
    try:
        queue = f"from worker import CodeQueue; queue = CodeQueue({shared_server.url!r}, 'code')"
        run = f"{queue}; print(queue.sync.run('print(42)').run_result.stdout)"
        assert did(plain / "python", "-c", run).strip() == "42"
    finally:
        worker.terminate()
        worker.wait(100)


def test_gates_and_groups_work(plain: Path, shared_server: PrivateRedis) -> None:
    gate = (
        f"from limiter import TokenBucket\ngate = TokenBucket({shared_server.url!r}, 'g', limit=2)"
    )
    did(plain / "python", "-c", f"{gate}\nwith gate:\n    pass")
    assert "g " in did(plain / "penstock", "limits", "ls", PENSTOCK_REDIS_URL=shared_server.url)
    did(plain / "python", "-c", "from buffer import RolloutBuffer; import jail")
