"""A code interpreter whose programs run in the embedded sandbox, or by script."""

from collections.abc import AsyncIterator

import pytest

from jail import LocalSandbox
from tests.worker.rollout.players import QueueTool


@pytest.fixture
async def interpreter() -> AsyncIterator[QueueTool]:
    """Real programs, in a jail of this process."""
    sandbox = LocalSandbox()
    yield QueueTool(sandbox)
    await sandbox.close()
