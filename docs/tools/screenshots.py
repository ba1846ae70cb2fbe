"""Take the pictures of the monitor's page over a fleet at work, into docs/pictures/.

Needs a Chromium (`make chromium`); `make screenshots` runs this.
"""

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from buffer import RolloutBuffer, TaskConfig
from buffer.group_functions import GroupFunctions
from ground import EmbeddedServer
from limiter import TokenBucket
from tests.harness.browser import Browser
from tests.penstock.serving import monitor
from worker import CodeQueue
from worker.lifecycle import SandboxLifecycle

PICTURES = Path(__file__).parents[1] / "pictures"
SECONDS = 40.0


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(folder) as server,
        monitor(server.url, PENSTOCK_MONITOR_TOKEN="shown") as url,
    ):
        TokenBucket(server.url, "code", limit=6).sync.configure(limit=6)
        env = os.environ | {"PENSTOCK_REDIS_URL": server.url, "PENSTOCK_SANDBOX": "local"}
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", "penstock", "worker", "--gate", "code", "--name", name],
                env=env,
                stderr=subprocess.DEVNULL,
            )
            for name in ("gpu-node-1", "gpu-node-2", "gpu-node-3")
        ]
        for busy in (_work, _roll_out):
            threading.Thread(target=busy, args=(server.url,), daemon=True).start()
        sessions = SandboxLifecycle(server.url, "local").sync
        with sessions.open(), sessions.open(), Browser() as browser:
            time.sleep(SECONDS)
            for name, width, height, dark in (
                ("monitor.png", 1280, 1100, False), ("monitor-phone.png", 390, 844, True),
            ):  # fmt: skip
                page = browser.open(f"{url}/#token=shown", width=width, height=height, dark=dark)
                page.until("document.querySelectorAll('#queues tbody tr').length > 0")
                page.until("document.getElementById('live').textContent.startsWith('live')")
                page.until("document.querySelectorAll('#registries tbody tr').length > 0")
                page.picture(PICTURES / name)
            page = browser.open(f"{url}/#token=shown", width=1280, height=860)
            page.until("document.getElementById('live').textContent.startsWith('live')")
            page.run("location.hash = '#/queues/code?state=finished'")
            page.until("document.querySelectorAll('main tbody tr').length > 9")
            page.picture(PICTURES / "monitor-queue.png")
        for worker in workers:
            worker.kill()
            worker.wait()


def _roll_out(url: str) -> None:
    """Trajectories of two kinds of reward, and a function that fails on some groups."""

    def normalize(group: tuple[Any, list[dict[str, Any]]], *_: object) -> Any:
        if any(item["reward"] < -0.85 for item in group[1]):
            raise KeyError("score")
        return group

    buffer = RolloutBuffer(
        url, "math", TaskConfig(group_size=4),
        functions=GroupFunctions(normalize_group_data=normalize),
    ).sync  # fmt: skip
    for n in range(100_000):
        rewards = [random.choice((0.0, 1.0, 1.0, random.uniform(-0.9, 0.9))) for _ in range(4)]
        for uid, reward in enumerate(rewards[: 4 if n % 7 else 3]):
            buffer.write(
                {"instance_id": f"math_{n}", "uid": str(uid), "messages": [], "reward": reward}
            )
        if n % 3 == 2 and (batch := buffer.take(2)):
            buffer.ack(batch)
        time.sleep(0.3)


def _work(url: str) -> None:
    queue = CodeQueue(url, "code").sync
    failing = "import time; time.sleep(0.3)\nassert 6 * 7 == 41, 'not what was asked'"
    handles = [
        queue.submit(failing if n % 9 == 8 else f"import time; time.sleep(0.4); print({n} ** 2)")
        for n in range(2000)
    ]
    print(len(handles), "jobs are queued")


if __name__ == "__main__":
    main()
