"""The queue suite, with few jobs: ours, and what a client of RQ's and redis-py do."""

import pytest
from rq import SimpleWorker, Worker

from bench import queue
from bench._queue_worker import class_of
from bench.suite import without
from worker import ConcurrentWorker

FEW = 5
OTHERS = [*queue.PINS, "rq", "rq simple", "rq simple x1", "rq simple x2", "penstock long"]


@pytest.mark.timeout(600)  # it starts fifteen processes
def test_what_is_measured_is_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_few(run):
        return lambda *given: run(*given[:-1], FEW)

    for name in ("run_burst", "run_fleet", "run_client", "run_program"):
        monkeypatch.setattr(queue, name, of_few(getattr(queue, name)))
    suite = without(queue.measure(quick=True), OTHERS)
    try:
        measured = {name: once() for name, once in suite.contenders.items()}
    finally:
        suite.clean_up()
    for ratio in suite.ratios:
        assert measured[ratio.contender][ratio.metric] > 0
        assert measured[ratio.peer][ratio.other or ratio.metric] > 0
    known = {ratio.name for ratio in suite.ratios}
    known |= {f"{name} {metric}" for name, metrics in measured.items() for metric in metrics}
    assert {target.what for target in suite.targets} <= known


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("rq", Worker), ("rq client", Worker), ("rq simple", SimpleWorker),
        ("rq simple client", SimpleWorker), ("penstock client", ConcurrentWorker),
    ],
)  # fmt: skip
def test_rqs_own_workers_serve_rqs_own_clients(name: str, kind: type) -> None:
    assert class_of(name) is kind
