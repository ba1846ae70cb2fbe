"""A signature shows whose token has signed the address of a file, which may name no sandbox.

Anybody may ask, so many who ask at once cost no more than one: they wait for the same list.
"""

import asyncio
import time
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from worker.e2b import http_files
from worker.e2b.boxes import Boxes, token_of
from worker.e2b.fleet.fleet import Fleet
from worker.e2b.problems import Problem
from worker.e2b.wire import was_forwarded

_PAUSE = 0.25  # seconds between two lists
_AT_ONCE = 8  # requests for which the other machines are asked


class Signatures:
    """The signatures of this machine's sandboxes, and of the others'."""

    def __init__(self, boxes: Boxes, fleet: Fleet | None) -> None:
        self._boxes, self._fleet = boxes, fleet
        self._token_of: Mapping[str, str] = {}  # by the sandbox's name
        self._listed = float("-inf")  # when the list was begun
        self._one_lists, self._asking = asyncio.Lock(), asyncio.Semaphore(_AT_ONCE)

    async def signer(self, request: Request) -> str:
        """The sandbox of this machine; empty if there is none. Raises `Problem` for what is no
        signature."""
        if not http_files.can_be_signed(request):
            raise Problem("unauthenticated", "the signature is none, or its time is over")
        if name := self._known(request):
            return name
        await self._list()
        return self._known(request)

    async def elsewhere(self, request: Request) -> Response | None:
        """Ask the machine whose sandbox has signed it."""
        if self._fleet is None or was_forwarded(request):
            return None
        async with self._asking:
            found = await self._fleet.signed(request.url.query, request.method)
        return self._fleet.passed_on(*found) if found else None

    def _known(self, request: Request) -> str:
        signers = (
            name for name, token in self._token_of.items() if http_files.signed(request, token)
        )
        return next(signers, "")

    async def _list(self) -> None:
        """List the living sandboxes' tokens once more, by a list that began after the call: a
        sandbox may be that young."""
        asked = time.monotonic()
        async with self._one_lists:
            if self._listed >= asked:  # for one who waited before
                return
            await asyncio.sleep(self._listed + _PAUSE - time.monotonic())
            begun = time.monotonic()
            self._token_of = {info.name: token_of(info) async for info in self._boxes.living()}
            self._listed = begun
