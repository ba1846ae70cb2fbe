"""The machines of one run that serve E2B's face: a lease in Redis each, with what it has room for.

A thread renews the lease, so that a server whose loop is busy is not believed dead. What Redis
said last is believed while it does not answer.
"""

import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from redis.exceptions import RedisError

from ground import connect
from ground.keys import tagged
from ground.lua import as_text, chunks, load_script
from ground.process import aside
from ground.redis.connect import AnyRedis, target_of
from worker.e2b.settings import ADDRESS

log = logging.getLogger("penstock.worker")

_MEET = load_script("worker.e2b", "meet")
_AT_MOST_EACH = 0.25  # seconds between two heartbeats that news brings about
FRESH = 1.0  # seconds for which a view is good enough to place by
_ID = re.compile(r"[!-~]{1,300}")  # a header of the requests that are passed on


@dataclass(frozen=True)
class Machine:
    """A machine is one server, as it describes itself. `scope` is that of the lifecycle's provider:
    whose record has it is a sandbox of this machine."""

    id: str
    scope: str
    address: str  # http://host:port
    alive: int = 0
    most: int = 0
    images: tuple[str, ...] = ()

    def has(self, image: str) -> bool:
        return image in self.images or f"{image}:latest" in self.images

    @property
    def room(self) -> int:
        return max(0, self.most - self.alive)


class Machines:
    """The machines, as this server knows them; it describes itself by `own`."""

    def __init__(
        self, redis: AnyRedis, run: str, id: str, own: Callable[[], Machine], lease: float
    ) -> None:
        self._id, self._own, self._lease = id, own, lease
        self._client = connect(target_of(redis))
        self._keys = [tagged("e2b", run, part) for part in ("", "machines")]
        self._proposal = secrets.token_hex(32)
        self._view: dict[str, tuple[Machine, float]] = {}  # and when it was last listed
        self._unread: set[bytes | str] = set()
        self._asked = float("-inf")
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="penstock-e2b", daemon=True)
        self.secret = ""
        self.reached = False  # whether Redis answered last time

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """The machine's entry stays until its lease ends: a server that comes back is the same."""
        self._over.set()
        self._news.set()
        self._thread.join()
        self._client.close()

    def tell(self) -> None:
        """This machine has more room, or less."""
        self._news.set()

    def living(self) -> list[Machine]:
        """All whose lease stands, this one too. One that is missing in Redis is believed in for
        a heartbeat longer: Redis may have lost it."""
        oldest = self._asked - self._lease / 2
        return [machine for machine, seen in list(self._view.values()) if seen >= oldest]

    async def look(self, fresh: float = FRESH) -> list[Machine]:
        """The machines as Redis has them now, or had it so many seconds ago."""
        if time.monotonic() - self._asked > fresh:
            try:
                await aside(lambda: self._meet(""))
            except (RedisError, OSError) as problem:
                self._lost(problem)
        return self.living()

    def note(self, machine: Machine) -> None:
        """Note what is known better than by the machine's own words: something was just placed on
        it."""
        if known := self._view.get(machine.id):
            self._view[machine.id] = machine, known[1]

    def _beat(self) -> None:
        while not self._over.is_set():
            self._news.clear()
            try:
                self._meet(json.dumps(asdict(self._own())))
                pause = self._lease / 3
            except (RedisError, OSError) as problem:
                self._lost(problem)
                pause = min(1.0, self._lease / 12)
            except Exception:  # no other thread takes over: this one goes on
                log.exception("this machine's E2B server could not be announced")
                pause = 1.0
            self._over.wait(_AT_MOST_EACH)
            self._news.wait(pause)

    def _meet(self, entry: str) -> None:
        secret, *rows = _MEET.call(
            self._client, self._keys, [self._proposal, self._id, entry, int(self._lease * 1e6)]
        )
        now = time.monotonic()
        self.secret = as_text(secret)
        for id, text in chunks(rows, 2):
            self._see(id, text, now)
        self._asked, self.reached = now, True
        for id, (_, seen) in list(self._view.items()):
            if seen < now - 2 * self._lease:
                self._view.pop(id, None)

    def _see(self, id: bytes | str, text: bytes | str, now: float) -> None:
        """Take in a machine's description; one that cannot be read is left out, and the others do
        not suffer by it."""
        try:
            found = _machine(as_text(id), json.loads(text))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
            if id not in self._unread:
                log.warning("a machine of the fleet is left out: %.100r: %.200s", id, problem)
            self._unread.add(id)
        else:
            self._view[found.id] = found, now

    def _lost(self, problem: Exception) -> None:
        if self.reached:
            log.warning(
                "Redis does not answer; sandboxes here continue, and none can start: %s", problem
            )
        self.reached = False


def address_by(host: str, port: int, redis: AnyRedis) -> str:
    """The address by which others reach a server that listens there. On all addresses: that by
    which this machine reaches Redis."""
    if host in ("0.0.0.0", "::", ""):  # noqa: S104 - asked, not listened on
        nodes = target_of(redis).nodes
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            try:
                trial.connect(nodes[0] if nodes else ("127.0.0.1", 9))  # nothing is sent
                host = trial.getsockname()[0]
            except OSError:
                host = socket.gethostname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _machine(id: str, said: dict[str, Any]) -> Machine:
    """A machine by any release's words: what is new is left out, what is missing has its default.
    Raises `ValueError` and its like."""
    found = Machine(
        id, str(said.get("scope", "")), str(said.get("address", "")), int(said.get("alive", 0)),
        int(said.get("most", 0)), tuple(map(str, said.get("images", ()))),
    )  # fmt: skip
    if not _ID.fullmatch(id) or not ADDRESS.fullmatch(found.address):
        raise ValueError(f"its address is {found.address!r}")
    _ = urlsplit(found.address).port  # which raises it too
    return found
