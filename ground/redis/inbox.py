"""The inbox: one blocked connection that reads this process's streams.

The process that frees a permit, or ends a job, writes an entry to a stream of the
waiter's process. The thread here reads those streams from the last entry it saw, so
that a cut connection loses nothing. It blocks while there is nothing to read.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

from redis.exceptions import RedisClusterException, RedisError

from ground.backoff import backoff
from ground.lua import Command, fields_of
from ground.redis.connection import LastingConnection
from ground.redis.url import RedisTarget

log = logging.getLogger("penstock.limiter")

_BLOCK = 15.0  # seconds of one blocked read; a server that fell silent is noticed soon after
SILENCE = _BLOCK + 5.0  # after which it has fallen silent
_FAILURES = (RedisError, RedisClusterException, OSError)  # a Cluster's own is no RedisError

Entries = list[dict[bytes, bytes]]


def nudge(inbox: str) -> list[Command]:
    """End the read that blocks on a process's inbox: an empty entry."""
    return [("XADD", inbox, "MAXLEN", "~", 1024, "*", "at", 0), ("EXPIRE", inbox, 3600)]


def reading(streams: Mapping[str, str]) -> Command:
    """The command that blocks until one of the streams has an entry after the one given."""
    return ("XREAD", "BLOCK", int(_BLOCK * 1000), "STREAMS", *streams, *streams.values())


def read_streams(reply: Any) -> Iterator[tuple[str, str, Entries]]:
    """The streams in the reply to `reading`: for each its name, its last entry's id, its
    entries."""
    found = reply.items() if isinstance(reply, dict) else reply or ()
    for name, entries in found:
        yield name.decode(), entries[-1][0].decode(), [fields_of(entry) for _, entry in entries]


class Inbox:
    """An inbox reads streams and hands their entries over; `listen` adds a stream at any time.

    Only its own thread touches its connection. Others end a blocked read by a nudge,
    an empty entry to a stream that it is reading.
    """

    def __init__(self, target: RedisTarget, received: Callable[[Any, Entries], None]) -> None:
        self._received = received
        self._guard = threading.Lock()
        self._owners: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._seen: dict[str, str] = {}
        self._reading: str | None = None
        self._listening, self._stopping = threading.Event(), threading.Event()
        self._connection = LastingConnection(target, SILENCE, {})
        self._thread = threading.Thread(target=self._run, name="penstock-inbox", daemon=True)

    def listen(self, stream: str, owner: Any) -> str | None:
        """Hand the owner what is on a stream and what arrives there, for as long as it lives.

        Returns the stream to nudge, if the read under way does not include this one.
        """
        with self._guard:
            if stream in self._owners:
                return None
            self._owners[stream] = owner
            self._seen.setdefault(stream, "0-0")
            self._listening.set()
            if not self._thread.ident:
                self._thread.start()
            return self._reading

    def end(self, send: Callable[[list[Command]], object] | None, within: float) -> None:
        """Stop reading. With `send`, which reaches the server, wait `within` seconds for the
        thread's end. Without it the thread ends when its read does, or with the process."""
        with self._guard:
            self._stopping.set()
            self._listening.set()
            reading = self._reading
        if send is None or not self._thread.ident:
            return
        if reading is not None:
            send(nudge(reading))
        self._thread.join(within)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.wait(backoff(failures, 0.02, 1.0) if failures else 0.0):
            try:
                self._read()
                failures = 0
            except _FAILURES as failure:
                log.debug("the inbox lost its connection: %s", failure)
                failures += 1
                self._connection.close()
        self._connection.close()

    def _read(self) -> None:
        with self._guard:
            if self._stopping.is_set():
                return None  # `end` found no read to nudge
            streams = {stream: self._seen[stream] for stream in self._owners}
            self._seen = dict(streams)
            self._reading = next(iter(streams), None)
            if not streams:
                self._listening.clear()
        if not streams:
            return self._idle()
        (found,) = self._connection.converse([reading(streams)])
        if isinstance(found, RedisError):
            raise found
        for stream, last, entries in read_streams(found):
            self._seen[stream] = last
            if (owner := self._owners.get(stream)) is not None:
                self._received(owner, entries)
        return None

    def _idle(self) -> None:
        """Wait for a stream to read. Close a connection that was idle for long: it may be dead."""
        if not self._listening.wait(SILENCE):
            self._connection.close()
            self._listening.wait()
