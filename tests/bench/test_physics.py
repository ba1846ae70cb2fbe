"""The suite `physics`: each path and its floor do what they are named for."""

import pytest

from bench import physics


@pytest.fixture(scope="module")
def suite():
    suite = physics.measure(quick=True)
    yield suite
    suite.clean_up()


def test_each_path_is_measured_beside_its_floor(suite) -> None:
    measured = {name: once()["us"] for name, once in suite.contenders.items()}
    assert all(us > 0 for us in measured.values())
    compared = {side for ratio in suite.ratios for side in (ratio.contender, ratio.peer)}
    assert compared == measured.keys()
