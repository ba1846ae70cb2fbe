"""One run, and an observer outside of it: it looks into Redis past the proxy, and at the processes.

What it sees is in its own journal, `observer-0.jsonl`. Nothing that it asks changes anything.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import redis.exceptions

import ground
from limiter import existing_gate
from tests.harness.servers import until
from tests.outside.releases import Release
from tests.proof import journal, setting
from tests.proof.fleet import Fleet
from tests.proof.schedule import CLOCKS, Disturbance

BUFFER = f"penstock:buffer:{{default/{setting.TASK}}}"
EMPTY = {
    "Job": ["rq:queue:code", "rq:queue:code:intermediate", "rq:wip:code",
            "penstock:work:{code}:leases"],
    "Group": [f"{BUFFER}:{part}" for part in ("open", "ready", "quarantine")],
    "Slot": [f"{BUFFER}:{part}" for part in ("slots", "waiting", "parked", "again")],
    "Batch": [f"{BUFFER}:{part}" for part in ("leased", "leases")],
    "Session sandbox": ["penstock:sandbox:{default}:leases", "penstock:sandbox:{default}:permits"],
}  # fmt: skip
"""Keys that must be gone when all is done, by what they would be left of."""
GATES = ("agents", "code", "starting")
LEFT_WITHIN = 60.0  # the longest lease is 6 s, and a busy machine takes its time
END_WITHIN = 600.0


class Observer:
    """Looks at one fleet."""

    def __init__(self, folder: Path, fleet: Fleet) -> None:
        self._folder, self._fleet = folder, fleet
        self._journal = journal.Journal(folder, "observer-0")
        self._change, self._fence, self._version = "-", 0, -1

    def leaves_out(self, what: str, why: str) -> None:
        self._journal.add("leaves out", kind=what, why=why)

    def look(self) -> None:
        """What may be seen at any moment: the gate's limit, the version, what is under way."""
        with self._redis() as client:
            self._look_at_limit(client)
            version = client.hget(f"{BUFFER}:policy", "version")
            if version is not None and int(version) != self._version:
                self._version = int(version)
                self._journal.add("version", version=self._version)
            under_way = sum(map(int, client.hvals(f"{BUFFER}:starts")))
            if under_way > setting.POLICY.most_outstanding:
                self._journal.add("too many under way", groups=under_way)
        for name, age in self._fleet.failed():
            self._journal.add("failed by itself", name=name, age=age)
            self._fleet.services[name].revive()

    def _look_at_limit(self, client: Any) -> None:
        """Between which two fences it changed: a clock that jumps would not say."""
        start = f"({self._change}" if self._change != "-" else "-"
        together = client.pipeline(transaction=True)
        together.hget("penstock:gate:{agents}", "fence")
        together.xrange("penstock:gate:{agents}:changes", start, "+")
        fence, changes = together.execute()
        if changes:
            self._change = changes[-1][0].decode()
            to = [float(change[b"to"]) for _, change in changes]
            self._journal.add("limit", after=self._fence, by=int(fence), to=to)
        self._fence = int(fence or 0)

    @contextlib.contextmanager
    def _redis(self) -> Iterator[Any]:
        """It may be away just now; then it is looked at later."""
        client: Any = ground.connect(self._fleet.server.target)
        with contextlib.closing(client), contextlib.suppress(redis.exceptions.RedisError, OSError):
            yield client

    def wait_for_the_end(self) -> None:
        """Generators end by themselves when nothing is left to make; then the buffer runs dry."""
        self._journal.add("no more disturbances")
        (self._folder / "stop").touch()
        makers = [each for each in self._fleet.services if each.startswith(("generator", "client"))]
        deadline = time.monotonic() + END_WITHIN + self._fleet.behind
        while not all(self._fleet.services[name].done for name in makers):
            self.look()
            if time.monotonic() > deadline:
                self._journal.add("never ended", names=makers)
                break
            time.sleep(0.2)
        self._until_gone("Group", "Batch")
        self._fleet.end("trainer")
        self._until_gone("Permit", *EMPTY)
        self._fleet.end("worker")  # whose reapers keep the hub of sandboxes busy
        with contextlib.suppress(AssertionError):
            until(lambda: not self._fleet.hub(), "the sandboxes and their hub", LEFT_WITHIN)
        if left := self._fleet.hub():
            self._journal.add("left", kind="Session sandbox", thing=f"processes {left}")
        self._look_into_the_logs()

    def _until_gone(self, *kinds: str) -> None:
        deadline = time.monotonic() + LEFT_WITHIN + self._fleet.behind
        while (left := list(self._left(kinds))) and time.monotonic() < deadline:
            self.look()
            time.sleep(0.2)
        for kind, key in left:
            self._journal.add("left", kind=kind, thing=key)

    def _left(self, kinds: Iterable[str]) -> Iterator[tuple[str, str]]:
        with self._redis() as client:
            for kind in kinds:
                yield from ((kind, key) for key in EMPTY.get(kind, ()) if client.exists(key))
            for gate in GATES if "Permit" in kinds else ():
                # Leases that have ended stay until somebody asks. Nobody does any more.
                now = existing_gate(self._fleet.server.target, gate).sync.status()
                if now.in_flight or now.waiting or now.cost:
                    yield "Permit", f"{now.in_flight} of gate {gate}"

    def _look_into_the_logs(self) -> None:
        """How each batch ended; and which calls the sessions have that were never finalized."""
        with self._redis() as client:
            for name in journal.names(self._folder, "trainer"):
                for line in journal.read(self._folder, name):
                    if line["what"] == "took":
                        receipt = line["receipt"]
                        state = client.hget(f"{BUFFER}:batch:{receipt}", "state") or b"unknown"
                        groups = {
                            group: (client.hget(f"{BUFFER}:group:{group}:0:meta", "receipt") or b"")
                            .decode() for group, _ in line["groups"]
                        }  # fmt: skip
                        self._journal.add(
                            "batch", receipt=receipt, state=state.decode(), groups=groups
                        )
        run = setting.Run.of(self._folder)
        opened, over = dict[str, str](), set[str]()
        for name in journal.names(self._folder, "generator"):
            for line in journal.read(self._folder, name):
                if line["what"] == "has a session":
                    opened[line["uid"]] = line["session"]
                elif line["what"] == "finalizes":
                    over.add(line["uid"])
        for uid, session in opened.items():
            if uid not in over:
                url = f"{run.gateways[0]}/tasks/{setting.TASK}/sessions/{session}"
                answer = httpx.get(url, timeout=100, trust_env=False).json()
                calls = [call["id"] for call in answer.get("calls", ()) if call["state"] == "done"]
                self._journal.add("session", session=session, calls=calls)


def run(
    folder: Path, seed: int, counts: dict[str, int], disturbances: Iterable[Disturbance],
    seconds: float, older: Release | None = None,
) -> None:  # fmt: skip
    """All of it: start, disturb by the schedule, come to an end."""
    left = list(disturbances)
    clocked = {each.target for each in left if each.kind in CLOCKS}
    with (
        Fleet(folder, seed, counts, clocked, older) as fleet,
        ThreadPoolExecutor(len(left) + 1) as strikers,
    ):
        observer, began, striking = Observer(folder, fleet), time.monotonic(), []
        for what, why in fleet.absent.items():
            observer.leaves_out(what, why)
        while (now := time.monotonic() - began) < seconds:
            while left and left[0].at <= now:
                if (what := left.pop(0)).kind not in fleet.absent:
                    striking.append(strikers.submit(fleet.strike, what))
            observer.look()
            for strike in [each for each in striking if each.done()]:
                strike.result()
            time.sleep(0.1)
        for strike in striking:
            strike.result()
        observer.wait_for_the_end()
