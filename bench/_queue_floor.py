"""What a job costs the server in our two scripts, and what RQ's own keys cost of it.

    python -m bench._queue_floor [ROUNDS]

Jobs are claimed and finished by 128, once by our scripts and once by scripts that hold nothing
but the writes that RQ's readers need; in turns, by the server's processor time, with its
append-only file and without. No suite of `bench`: there is no worker in it.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench._queue_runs import filled, server_seconds
from ground import EmbeddedServer
from ground.server.binary import bundled_server
from worker.concurrent.commands import SCRIPTS, WorkCommands

JOBS, BATCH = 4_000, 128
PENSTOCK = WorkCommands("bench", "w", 30.0, None)
MOMENT, SECONDS, LATER = "2026-11-21T10:11:12.345678Z", "1790000000.000000", "1790003600"
WIP, EXECUTIONS = "rq:wip:bench", "rq:worker:w:executions"
Pairs = list[tuple[bytes, bytes]]


def penstock(client: Any) -> Callable[[], Pairs]:
    def turn() -> Pairs:
        _, _, _, _, *jobs = client.execute_command(*PENSTOCK.claim(BATCH))
        rows = [(id, execution, 1, 600, b"", SECONDS, b"", b"", 0) for id, execution, _ in jobs]
        assert all(client.execute_command(*PENSTOCK.finish(rows)))
        return [(id, execution) for id, execution, _ in jobs]

    for script in (PENSTOCK.claim(1)[1], PENSTOCK.finish([])[1]):
        client.script_load(SCRIPTS[script].source)
    return turn


def bare(client: Any) -> Callable[[], Pairs]:
    here = Path(__file__).parent / "queue_contenders"
    claim, finish = (client.register_script((here / f"bare_{name}.lua").read_text())
                     for name in ("claim", "finish"))  # fmt: skip

    def turn() -> Pairs:
        jobs = claim(keys=["rq:queue:bench", WIP, EXECUTIONS],
                     args=[BATCH, 3630, LATER, MOMENT, SECONDS, "w"])  # fmt: skip
        pairs = [(id, execution) for id, execution, _ in jobs]
        flat = [word for pair in pairs for word in pair]
        finish(keys=[WIP, EXECUTIONS, "rq:finished:bench"],
               args=[600, LATER, MOMENT, SECONDS, "w", *flat])  # fmt: skip
        return pairs

    return turn


def measure(url: str, make: Callable[[Any], Callable[[], Pairs]]) -> float:
    """Microseconds of the server's processor time a job."""
    client = filled(url, "penstock", "noop", JOBS)
    turn = make(client)
    before, done = server_seconds(client), 0
    while done < JOBS:
        done += len(turn())
    spent = server_seconds(client) - before
    assert client.zcard("rq:finished:bench") == JOBS
    client.close()
    return spent / JOBS * 1e6


def main(rounds: int) -> None:
    for file in ("yes", "no"):
        with tempfile.TemporaryDirectory() as home:
            server = EmbeddedServer(
                Path(home), binary=bundled_server(), config=[f"appendonly {file}"]
            )
            try:
                took = [
                    (measure(server.url, penstock), measure(server.url, bare))
                    for _ in range(rounds)
                ]
            finally:
                server.stop()
        of_ours, of_rq = (statistics.median(figures) for figures in zip(*took, strict=True))
        share = statistics.median(rq / us for us, rq in took)
        print(f"append-only file {file}: {of_ours:.0f} µs, RQ's own keys {of_rq:.0f}, {share:.0%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
