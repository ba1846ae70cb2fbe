"""Penstock's errors pass between processes."""

import pickle

import pytest

from buffer import ItemRefused
from ground import PenstockError, SettingError
from jail.errors import SandboxUnfit
from limiter import LimitTimeout
from worker.errors import DeadlineExceeded, NotAllowed, NoWorkers, QueueUnavailable
from worker.reward import RewardUnknown


def below(kind: type[PenstockError]) -> set[type[PenstockError]]:
    return {kind}.union(*(below(each) for each in kind.__subclasses__()))


@pytest.mark.parametrize(
    "error",
    [
        SettingError("PENSTOCK_RUN", "is empty"),
        QueueUnavailable("code", "host", "refused"),
        NoWorkers("code", 3, 60.0),
        DeadlineExceeded("job", 5.0),
        NotAllowed("function", "os.system"),
        SandboxUnfit("it has no java", reason="language"),
        RewardUnknown([None], [{"a": 1}], [{"api_request_error": "away", "status": "?"}]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: PenstockError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def test_every_class_passes() -> None:
    kinds = below(PenstockError)
    assert {LimitTimeout, ItemRefused, NoWorkers} < kinds
    for kind in kinds:
        error = kind.__new__(kind, "said")
        assert type(pickle.loads(pickle.dumps(error))) is kind
