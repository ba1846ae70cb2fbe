"""Suites in Redis, by their content: what is there already is not sent again.

    manifest   how many cases each pack has, and the digest of each pack
    pack       some cases, 256 kB together at most; a text above 64 kB is in blobs of its own
    blob       at most 1 MiB, compressed above 4 kB

A digest names every value. So two problems share what they have in common, and nobody can put other
content in a value's place. All expire; a client sends what is missing once more, and a worker that
misses something says so in its result: `suite_missing`.
"""

import json
import math
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from redis.exceptions import RedisError

from ground import connect
from ground.backoff import backoff
from ground.keys import tagged
from ground.lua import chunks
from ground.recent import Recent
from ground.redis.url import RedisTarget
from jail.judge.packed import Packed, digest_of
from worker.errors import QueueUnavailable
from worker.settings import result_ttl_here

TTL = 3600  # seconds at least; renewed when a suite is sent, and when a worker takes it up
RENEW = TTL / 4
KNOWN = 10_000  # suites of which a process remembers when it sent or renewed them
MISSING = "suite_missing"

_COMPRESS_ABOVE = 4096
_AT_ONCE = 4  # values in one write to Redis


def value_of(raw: bytes) -> bytes:
    """The value of a blob, as Redis keeps it."""
    if len(raw) > _COMPRESS_ABOVE:
        small = zlib.compress(raw, 1)
        if len(small) < len(raw):
            return b"z" + small
    return b"r" + raw


def content_of(value: bytes | None, digest: str) -> bytes | None:
    """The content kept under that digest; None if it is missing, or is something else."""
    if not value:
        return None
    try:
        raw = zlib.decompress(value[1:]) if value[:1] == b"z" else value[1:]
    except zlib.error:
        return None
    return raw if digest_of(raw) == digest else None


def suite_key(digest: str) -> str:
    """The key of a manifest."""
    return tagged("suite", digest)


def blob_key(digest: str) -> str:
    """The key of a pack or a text."""
    return tagged("blob", digest)


def suite_ttl() -> int:
    """How long a suite is kept after its last use: as long as results are, or longer."""
    return max(TTL, result_ttl_here(None))


class TooLate(Exception):
    """The time of a call was over before its suite was in Redis."""


class SuiteStore:
    """A client's side: sends suites to one Redis, each once. For threads."""

    def __init__(self, target: RedisTarget, queue: str, patience: float) -> None:
        self._target, self._queue, self._patience = target, queue, patience
        self._client, self._ttl = connect(target), suite_ttl()
        self._guard = threading.Lock()
        self._sent: Recent[float] = Recent(KNOWN)
        self._failed: tuple[Exception | None, float] = None, -math.inf  # the last attempt that did

    def knows(self, packed: Packed) -> bool:
        """Whether this process has sent it lately, so that it is there."""
        return time.monotonic() < self._sent.get(packed.ref.sha256, -math.inf) + RENEW

    def send(self, packed: Packed, *, again: bool = False, ends: float = math.inf) -> None:
        """Store a suite, and wait until all of it is there.

        Raises `QueueUnavailable`, or `TooLate` at the first command after the time `ends`.
        """
        began, attempt = time.monotonic(), 0
        while True:
            problem = self._attempt(packed, began, ends, again=again)
            if problem is None:
                return
            attempt += 1
            wait = backoff(attempt, 0.1, 5.0)
            if time.monotonic() + wait > began + self._patience:
                raise QueueUnavailable(self._queue, str(self._target), problem) from None
            if time.monotonic() + wait > ends:
                raise TooLate
            time.sleep(wait)

    def _attempt(
        self, packed: Packed, began: float, ends: float, *, again: bool
    ) -> Exception | None:
        """Try to store a suite, and return the failure. Of many samples of one problem the first
        sends it, and the others wait: for another's failures no longer than they are patient."""
        if not self._taken_by(min(began + self._patience, ends)):
            if problem := self._problem_since(began):
                return problem
            if not self._taken_by(ends):
                raise TooLate
        try:
            if not again and self.knows(packed):
                return None
            return self._problem_since(began) or self._tried(packed, ends)
        finally:
            self._guard.release()

    def _taken_by(self, ends: float) -> bool:
        """Whether the guard was to be had until then."""
        left = max(0.0, ends - time.monotonic())
        return self._guard.acquire(timeout=-1 if left == math.inf else left)

    def _problem_since(self, began: float) -> Exception | None:
        """The failure of another's attempt, for a caller whose patience is over."""
        problem, at = self._failed
        return problem if at >= began and time.monotonic() >= began + self._patience else None

    def _tried(self, packed: Packed, ends: float) -> Exception | None:
        try:
            self._send(packed, ends)
        except (RedisError, OSError) as problem:
            self._failed = problem, time.monotonic()
            return problem
        self._sent.put(packed.ref.sha256, time.monotonic())
        return None

    def _send(self, packed: Packed, ends: float) -> None:
        keys = {blob_key(digest): raw for digest, raw in packed.blobs.items()}
        keys[suite_key(packed.ref.sha256)] = packed.manifest  # last: what it names is there then
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.expire(key, self._ttl)
            there = pipe.execute()
        missing = [key for key, found in zip(keys, there, strict=True) if not found]
        for some in chunks(missing, _AT_ONCE):
            if time.monotonic() >= ends:
                raise TooLate
            with self._client.pipeline(transaction=False) as pipe:
                for key in some:
                    pipe.set(key, value_of(keys[key]), ex=self._ttl)
                pipe.execute()


def manifest_of(raw: bytes) -> tuple[list[tuple[int, list[str]]], list[str]]:
    """A suite's packs, and the digests of all that it needs."""
    read = json.loads(raw)
    return [(count, digests) for count, digests in read["packs"]], list(read["blobs"])


def digests_in(row: Iterable[Any]) -> Iterator[str]:
    """The blobs of a case in a pack: those in which its larger texts lie."""
    for kept in row:
        if isinstance(kept, dict):
            yield from kept["blobs"]
        elif isinstance(kept, list):
            yield from digests_in(kept)
