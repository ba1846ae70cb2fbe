"""Run 10,000 jobs while workers are killed with -9, and keep what was counted in kept/killed.json.

    python -m docs.tools.killed            about ten minutes

It is the long run of tests/worker/test_who_dies_when.py: a job that has another number of
results than one ends it.
"""

import contextlib
import json
import tempfile
from pathlib import Path

import ground
from tests.harness.servers import PrivateRedis
from tests.worker.concurrent import chaos

KEPT = Path(__file__).parent / "kept" / "killed.json"
JOBS, A_KILL_EVERY = 10_000, 200


def main() -> None:
    found = {}
    for name, run in (
        ("scripted", chaos.in_scripted_sandbox), ("embedded", chaos.in_embedded_sandbox),
    ):  # fmt: skip
        with (
            tempfile.TemporaryDirectory() as folder,
            PrivateRedis(Path(folder)) as server,
            contextlib.closing(ground.connect(server.url)) as client,
        ):
            found[name] = run(client, JOBS, every=A_KILL_EVERY, within=1000)
            found[name]["most"] = JOBS + found[name]["kills"] * chaos.LIMIT
    KEPT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
