"""A worker's side of suites in Redis: fetched a case or two ahead, kept for the next program.

Sixteen samples of one problem on one worker fetch its cases once. Of a suite whose first case
fails, hardly more than that case is fetched.
"""

import asyncio
import contextlib
import json
import weakref
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import accumulate
from typing import Any

from redis.exceptions import RedisError

from ground.recent import Recent
from ground.redis.connect import TIMEOUT, connect_async
from ground.redis.outage import Outage
from ground.redis.url import RedisTarget
from jail.errors import SandboxUnfit, SandboxUnreachable
from jail.judge.models import SuiteRef
from jail.judge.suite import Case
from worker.queue.suite_store import (
    KNOWN,
    MISSING,
    RENEW,
    blob_key,
    content_of,
    digests_in,
    manifest_of,
    suite_key,
    suite_ttl,
)

KEPT = 256 << 20  # bytes of cases that a worker remembers
PATIENCE = 30.0  # seconds of an outage of Redis that cost no case
_AHEAD = 2
_PACKS = 8  # that a program has open: cases side by side are in neighbouring ones

_here: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[RedisTarget, "SuiteReader"]]
_here = weakref.WeakKeyDictionary()


def reader_here(target: RedisTarget) -> "SuiteReader":
    """This event loop's reader of that Redis."""
    made = _here.setdefault(asyncio.get_running_loop(), {})
    if target not in made:
        made[target] = SuiteReader(target)
    return made[target]


async def close_readers_here() -> None:
    """Close this event loop's connections; the next use makes new ones."""
    for reader in _here.pop(asyncio.get_running_loop(), {}).values():
        await reader.close()


class SuiteReader:
    """Values by their digests, each fetched once while it is remembered."""

    def __init__(self, target: RedisTarget, kept: int = KEPT) -> None:
        self.client: Any = connect_async(target)
        self._ttl = suite_ttl()
        self._kept: Recent[bytes] = Recent(kept, len)
        self._coming: dict[str, asyncio.Task[bytes]] = {}
        self._renewed: Recent[float] = Recent(KNOWN)
        self._outage = Outage()

    async def open(self, ref: SuiteRef) -> "StoredSuite":
        """Open a stored suite. Raises `SandboxUnfit` if it is not there, for `suite_missing`."""
        packs, blobs = manifest_of(await self.fetched(ref.sha256, suite_key(ref.sha256)))
        if sum(count for count, _ in packs) != ref.count:
            raise SandboxUnfit(
                f"the suite {ref.sha256[:12]}… has other than {ref.count} cases", reason=MISSING
            )
        suite = StoredSuite(self, packs, partial(self._renew, ref.sha256, blobs))
        await suite.renew()
        return suite

    async def fetched(self, digest: str, key: str) -> bytes:
        """The content. Callers that ask meanwhile wait for the same answer."""
        if (found := self._kept.use(digest)) is not None:
            return found
        if digest not in self._coming:
            task = asyncio.create_task(self._fetch(digest, key))
            self._coming[digest] = task
            task.add_done_callback(lambda _: self._coming.pop(digest, None))
            task.add_done_callback(_seen)
        return await asyncio.shield(self._coming[digest])

    async def _fetch(self, digest: str, key: str) -> bytes:
        content = content_of(await self._asked(key), digest)
        if content is None:
            raise SandboxUnfit(f"{key} is not in Redis any more", reason=MISSING)
        self._kept.put(digest, content)
        return content

    async def _asked(self, key: str) -> bytes | None:
        """The value; while Redis is away it is asked for again, as long as a gate would be."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                value: bytes | None = await self.client.get(key)
            except (RedisError, OSError) as problem:
                now = clock()
                if now >= self._outage.failed(now, problem, TIMEOUT) + PATIENCE:
                    raise SandboxUnreachable(
                        f"a suite could not be fetched: {problem}", reason="suite_unreachable"
                    ) from None
                await asyncio.sleep(self._outage.retry_at - now)
            else:
                self._outage.over()
                return value

    async def _renew(self, digest: str, blobs: Iterable[str]) -> None:
        """Keep the suite alive while jobs take it up, and while its cases are judged."""
        now = asyncio.get_running_loop().time()
        if now < self._renewed.get(digest, -RENEW) + RENEW:
            return
        self._renewed.put(digest, now)  # also if it fails: it has time enough for another renewal
        async with self.client.pipeline(transaction=False) as pipe:
            for key in (suite_key(digest), *map(blob_key, blobs)):
                pipe.expire(key, self._ttl)
            with contextlib.suppress(RedisError, OSError):
                await pipe.execute()

    async def close(self) -> None:
        """Hang up."""
        for task in list(self._coming.values()):
            task.cancel()
        await self.client.aclose()


class StoredSuite:
    """A `Suite` whose cases are in Redis."""

    def __init__(
        self,
        reader: SuiteReader,
        packs: list[tuple[int, list[str]]],
        renew: Callable[[], Awaitable[None]],
    ) -> None:
        self._reader, self.renew = reader, renew
        self._packs = [digests for _, digests in packs]
        self._ends = list(accumulate(count for count, _ in packs))
        self._rows: Recent[list[Any]] = Recent(_PACKS)  # of the last packs that were read
        self._ahead: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return self._ends[-1]

    async def case(self, index: int) -> Case:
        await self.renew()
        for later in range(index + 1, index + 1 + min(index, _AHEAD)):  # behind the first, none
            if later < len(self) and self._has_large(later):
                self._begin(later)
        given, expected, check = await self._row(index)
        if expected is not None:
            answers = expected if isinstance(expected, list) else [expected]
            expected = tuple([await self._content(answer) for answer in answers])
        text = (await self._content(check)).decode()
        return Case(await self._content(given), expected, text)

    async def close(self) -> None:
        for task in self._ahead:
            task.cancel()

    def _has_large(self, index: int) -> bool:
        """Whether this case may have something to fetch: large texts are stored apart."""
        pack, at = self._place(index)
        return pack not in self._rows or any(digests_in(self._rows[pack][at]))

    def _begin(self, index: int) -> None:
        task = asyncio.create_task(self._bring(index))
        self._ahead.add(task)
        task.add_done_callback(self._ahead.discard)
        task.add_done_callback(_seen)

    async def _bring(self, index: int) -> None:
        for digest in digests_in(await self._row(index)):
            await self._reader.fetched(digest, blob_key(digest))

    async def _row(self, index: int) -> Any:
        pack, at = self._place(index)
        if (rows := self._rows.use(pack)) is None:
            rows = json.loads(await self._joined(self._packs[pack]))
            self._rows.put(pack, rows)
        return rows[at]

    def _place(self, index: int) -> tuple[int, int]:
        pack = bisect_right(self._ends, index)
        return pack, index - (self._ends[pack - 1] if pack else 0)

    async def _content(self, kept: Any) -> bytes:
        return kept.encode() if isinstance(kept, str) else await self._joined(kept["blobs"])

    async def _joined(self, digests: list[str]) -> bytes:
        return b"".join([await self._reader.fetched(each, blob_key(each)) for each in digests])


def _seen(task: "asyncio.Task[Any]") -> None:
    """Mark a failure as seen: the next caller that asks for the case meets it again."""
    if not task.cancelled():
        task.exception()
