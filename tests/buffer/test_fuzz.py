"""schemathesis on the server's own OpenAPI document."""

import subprocess
import sys
from pathlib import Path

import pytest

import ground
from tests.buffer.serving import ServerProcess
from tests.harness import patient
from tests.harness.servers import PrivateRedis

# Upstream takes any body for a read and any type for most fields, and so do we: whether
# a request that the schema does not foresee is accepted is no fault here.
NOT_OURS = "negative_data_rejection,positive_data_acceptance"


# Here it does: what the document allows is taken, and what it forbids is refused.
EXACT = ("/buffer/write", "/start_rollout")


@pytest.mark.parametrize(
    ("examples", "seeded"),
    [
        # A busy machine is no finding; and what is sent is the same each time.
        pytest.param(3, ["--generation-deterministic"], marks=pytest.mark.timeout(600)),
        pytest.param(200, [], marks=[pytest.mark.soak, pytest.mark.timeout(3000)]),
    ],
    ids=["few", "many"],
)
def test_nothing_that_can_be_sent_breaks_the_server(
    examples: int,
    seeded: list[str],
    real_redis: ground.Client,
    shared_server: PrivateRedis,
    tmp_path: Path,
) -> None:
    quick = {"PENSTOCK_LONGEST_WAIT": "0.05", "PENSTOCK_WRITE_PATIENCE": "0.05"}
    for only in (
        ["--exclude-checks", NOT_OURS],
        ["--checks", NOT_OURS, *(word for path in EXACT for word in ("--include-path", path))],
    ):
        real_redis.flushdb()  # a task's own settings may rule out what the document allows
        with ServerProcess(shared_server.url, tmp_path, **quick) as server:
            patient.put(f"{server.url}/v1/tasks/fuzz", json={"group_size": 2}).raise_for_status()
            result = subprocess.run(
                [Path(sys.executable).with_name("schemathesis"), "run",
                 f"{server.url}/openapi.json", "--max-examples", str(examples),
                 "--request-timeout", "60", "--phases", "coverage,fuzzing", "--no-color",
                 *only, *seeded],
                cwd=tmp_path, capture_output=True, text=True,
            )  # fmt: skip
            assert result.returncode == 0, result.stdout[-5000:]
            assert patient.get(f"{server.url}/healthz").status_code == 200
