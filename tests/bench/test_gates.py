"""The gates suite, as a user runs it; peers left out, but for the program of one of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import run_json
from ground import EmbeddedServer
from ground.server.binary import bundled_server

ROOT = Path(__file__).parents[2]
CONTENDERS = ROOT / "bench" / "gates_contenders"
PEERS = ("ray", "redis-py locks", "redis-rate-limiters")
LONG_LINES = ("penstock, 1,000 waiting", "penstock, 100,000 waiting")


@pytest.mark.timeout(600)
def test_a_quick_run_measures_and_judges_what_is_not_left_out() -> None:
    skip = [word for name in (*PEERS, *LONG_LINES) for word in ("--without", name)]
    run = subprocess.run(
        [sys.executable, "-m", "bench", "gates", "--quick", "--json", *skip],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=True,
    )
    report = json.loads(run.stdout)
    results = report["results"]
    assert list(results) == ["penstock", "penstock, 0 waiting", "penstock, 1 waiting"]
    none = [
        f"{who}: {name}"
        for who, metrics in results.items()
        for name, run in metrics.items()
        if not run["median"] > 0
    ]
    assert none == []
    assert report["ratios"] == {}
    judged = {goal["what"]: goal["met"] for goal in report["targets"] if goal["met"] is not None}
    assert judged == {
        "penstock acquire calls per permit, alone": True,
        "penstock acquire calls per permit, fleet": True,
    }


def test_a_peer_is_put_through_the_same(tmp_path: Path) -> None:
    def pairs(program: str) -> dict[str, float]:
        arguments = (server.url, "0.05", "0", "pairs")
        return run_json(Path(sys.executable), CONTENDERS / program, *arguments, env=os.environ)

    with EmbeddedServer(tmp_path, binary=bundled_server()) as server:
        ours, theirs = pairs("penstock_gate.py"), pairs("redis_locks.py")
    assert ours.keys() == theirs.keys()
    assert all(rate >= 0 for rate in theirs.values())
