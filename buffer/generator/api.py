"""Servers of Penstock, as a generator asks them: again, until they answer.

A server of the buffer imports this too, and asks nobody. So the HTTP client is imported when it is
used.
"""

import json
import logging
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from buffer.errors import GeneratorError
from buffer.settings import BufferSettings
from ground import tracing
from ground.backoff import backoff, retry_after_seconds
from ground.loopback import is_loopback

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

_TIMEOUT = 60.0
_LONGEST_PAUSE = 15.0
JSON = {"Content-Type": "application/json"}


class Api:
    """The requests below one URL, for one thread."""

    def __init__(
        self, url: str, headers: dict[str, str], *, name: str = "the buffer",
        over: tuple[int, ...] = (404, 410),
    ) -> None:  # fmt: skip
        """`over` are the statuses of what is not there, or not any more."""
        self._url, self._headers, self._name, self._over = url, headers, name, over
        self._client: httpx.Client | None = None

    def another(self) -> "Api":
        """A client of the same server for another thread."""
        return Api(self._url, self._headers, name=self._name, over=self._over)

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """The answer; None if there is nothing of that name, or it is over.

        Raises `GeneratorError` if it is refused.
        """
        import httpx

        content = None if body is None else encoded(body)
        headers = {} if body is None else JSON
        failures = 0
        while True:
            pause = 0.0
            if self._client is None:
                self._client = new_client(self._url, self._headers)
            try:
                answer = self._client.request(
                    method, self._url + path, content=content,
                    headers=headers | tracing.headers(), **options,
                )  # fmt: skip
            except httpx.TransportError as failure:
                log.warning(f"{self._name} cannot be reached", extra={"reason": str(failure)})
            else:
                if answer.status_code == 200:
                    return answer.json()
                if answer.status_code in self._over:
                    return None
                if answer.status_code in (400, 405, 413, 422):
                    raise GeneratorError(
                        f"{self._name} refused {method} {path}: {answer.text[:300]}"
                    )
                log.warning(f"{self._name} is not ready", extra={"status": answer.status_code})
                pause = retry_after(answer)
            failures += 1
            time.sleep(max(pause, backoff(failures, 0.1, _LONGEST_PAUSE)))


def encoded(item: Any) -> bytes:
    """The item in ASCII, which has a place for half a surrogate pair; NaN is refused here."""
    return json.dumps(item, allow_nan=False).encode()


def new_client(url: str, headers: dict[str, str]) -> "httpx.Client":
    """The connections of one thread. The server itself waits for room before it answers 429."""
    import httpx

    return httpx.Client(timeout=_TIMEOUT, headers=headers, trust_env=is_proxied(url))


def is_proxied(url: str) -> bool:
    """Whether a proxy of the environment may be asked for it: none is for this machine's own."""
    return not is_loopback(urlsplit(url).hostname or "")


def authorization() -> dict[str, str]:
    """The header that the buffer's server wants to see."""
    token = BufferSettings.load().buffer_token
    return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}


def retry_after(response: "httpx.Response") -> float:
    """Seconds that a server asks for."""
    return min(retry_after_seconds(response.headers.get("Retry-After", "")) or 0.0, 60.0)
