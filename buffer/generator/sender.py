"""A sender posts from a generator to the buffer over HTTP, and tries until the item is there.

Every item has a uid, so that a repeat after a lost reply is not stored twice.
"""

import logging
import random
import time
from typing import TYPE_CHECKING, Any

from buffer.generator.api import JSON, authorization, encoded, new_client, retry_after
from ground import tracing
from ground.backoff import backoff

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 15.0
# The item itself is wrong, or its rollout was replaced. Everything else, a wrong token
# included, can be put right meanwhile.
_FOR_GOOD = (400, 410, 413, 422)


class Sender:
    """A sender posts items to `<url>/buffer/write`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/") + "/buffer/write"
        self._client: httpx.Client | None = None

    def send(self, item: dict[str, Any]) -> bool:
        """Send an item until it is stored: True. False if it is refused for good, which is
        logged."""
        failures = 0
        while True:
            refused = self._try(item)
            if refused is None:
                return True
            if isinstance(refused, str):
                log.error(
                    "the buffer refused an item",
                    extra={"instance": str(item.get("instance_id")), "reason": refused},
                )
                return False
            failures += 1
            pause = backoff(failures, 0.1, _LONGEST_PAUSE)
            time.sleep(max(pause * random.uniform(0.5, 1.0), refused))

    def _try(self, item: dict[str, Any]) -> str | float | None:
        """None: stored. A text: refused. A number: not now, wait at least this many seconds."""
        import httpx

        if self._client is None:
            self._client = new_client(self._url, authorization())
        try:
            body = encoded(item)
        except (TypeError, ValueError, RecursionError) as problem:
            return f"it is not JSON: {problem}"
        try:
            response = self._client.post(self._url, content=body, headers=JSON | tracing.headers())
        except httpx.TransportError as failure:
            log.warning("the buffer cannot be reached", extra={"reason": str(failure)})
            return 0.0
        if response.status_code == 200:
            return None
        if response.status_code not in _FOR_GOOD:
            log.warning("the buffer is not ready", extra={"status": response.status_code})
            return retry_after(response)
        return f"{response.status_code} {response.text[:500]}"
