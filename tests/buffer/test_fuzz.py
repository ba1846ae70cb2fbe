"""schemathesis on the server's own OpenAPI document."""

from pathlib import Path

import pytest

import ground
from tests.buffer.serving import ServerProcess
from tests.harness import fuzzing, patient
from tests.harness.servers import PrivateRedis

# Upstream takes any body for a read and any type for most fields, and so do we: whether
# a request that the schema does not foresee is accepted is no fault here.
NOT_OURS = "negative_data_rejection,positive_data_acceptance"


# Here it does: what the document allows is taken, and what it forbids is refused.
EXACT = ("/buffer/write", "/start_rollout")


@pytest.mark.parametrize(
    ("examples", "seeded"),
    [
        pytest.param(3, fuzzing.SEEDED, marks=pytest.mark.timeout(600)),
        pytest.param(200, (), marks=[pytest.mark.soak, pytest.mark.timeout(3000)]),
    ],
    ids=["few", "many"],
)
def test_nothing_that_can_be_sent_breaks_the_server(
    examples: int,
    seeded: tuple[str, ...],
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
            document = f"{server.url}/openapi.json"
            fuzzing.nothing_breaks(document, tmp_path, examples, *only, *seeded)
            assert patient.get(f"{server.url}/healthz").status_code == 200
