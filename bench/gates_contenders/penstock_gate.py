"""Penstock's gate."""

import workload

from limiter import SyncPermit, TokenBucket


class PenstockGate:
    def __init__(self, url: str, name: str, limit: int) -> None:
        self._gate = TokenBucket(url, name, limit=limit)

    def acquire(self) -> SyncPermit:
        return self._gate.sync.acquire()

    def release(self, held: SyncPermit) -> None:
        held.release()

    async def pair(self) -> None:
        (await self._gate.acquire()).release()


if __name__ == "__main__":
    workload.main(PenstockGate)
