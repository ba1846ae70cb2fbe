"""An embedded server's place, checked to be left when the test is over."""

import pytest

from tests.harness.remains import until_nothing_runs_in
from tests.harness.servers import server_binary


@pytest.fixture(scope="session")
def binary():
    """The server under test, to embed."""
    return str(server_binary())


@pytest.fixture
def folder(tmp_path):
    """A data directory, in which nothing may run after the test."""
    yield tmp_path / "data"
    until_nothing_runs_in(tmp_path / "data")
