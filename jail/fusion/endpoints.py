"""The least loaded of several sandboxes in good health gets the next program.

Health is what programs met, nobody polls. An endpoint that failed is set aside, for a time that
doubles with each failure. Then it gets one program as a trial. With all of them set aside the least
loaded is used: a doubtful sandbox is better than none, and the worker's own waits keep it from
being flooded.
"""

import asyncio
import logging
import math
import random
import socket
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies

import httpx

from ground.backoff import backoff
from ground.errors import SettingError
from ground.loopback import is_loopback
from jail.errors import SandboxFailure, SandboxTimeout, SandboxUnfit, SandboxUnreachable

FIRST_ASIDE = 0.5
LONGEST_ASIDE = 30.0

log = logging.getLogger("penstock.worker")


class Endpoint:
    """The address of one sandbox, and what its last programs met there."""

    def __init__(self, url: str) -> None:
        self.url, self.shown = url, _shown(url)
        self.in_flight = 0
        self.failures = 0
        self.unreachable = False
        self.aside_until = 0.0
        self.judged_from = -math.inf
        self.on_trial = False

    def may_be_tried(self, now: float) -> bool:
        return self.failures == 0 or (now >= self.aside_until and not self.on_trial)

    def fail(self, failure: SandboxFailure, began: float, now: float) -> None:
        if began < max(self.judged_from, self.aside_until):
            return  # programs that fail together are one failure, with those sent meanwhile
        self.failures += 1
        self.unreachable = isinstance(failure, SandboxUnreachable | SandboxTimeout)
        asked = min(failure.retry_after or 0.0, LONGEST_ASIDE)
        aside = max(asked, backoff(self.failures, FIRST_ASIDE, LONGEST_ASIDE))
        self.judged_from, self.aside_until = now, now + aside
        log.warning(
            "sandbox %s failed and gets no programs for %g s: %s", self.shown, aside, failure.reason
        )

    def succeed(self, began: float) -> None:
        if self.failures and began >= self.judged_from:
            self.failures, self.unreachable, self.aside_until = 0, False, 0.0
            log.info("sandbox %s works again", self.shown)


class Endpoints:
    """The sandboxes of one provider, on one event loop."""

    def __init__(self, urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        if not urls:
            raise SettingError("sandbox_fusion_url", "names no sandbox")
        self.all = [Endpoint(url) for url in urls]
        self._clock = clock

    @contextmanager
    def borrow(self) -> Iterator[Endpoint]:
        """An endpoint for one program; a failure inside speaks against it, if it may pass."""
        began = self._clock()
        endpoint = self._choose(began)
        trial = endpoint.failures > 0 and endpoint.may_be_tried(began)
        endpoint.in_flight += 1
        endpoint.on_trial |= trial
        try:
            yield endpoint
            endpoint.succeed(began)
        except SandboxFailure as failure:
            if failure.retryable:
                endpoint.fail(failure, began, self._clock())
            raise
        finally:
            endpoint.in_flight -= 1
            endpoint.on_trial &= not trial

    def unreachable(self) -> list[str]:
        """The endpoints that gave no answer when a program was last sent there; from any thread."""
        return [endpoint.shown for endpoint in self.all if endpoint.unreachable]

    def _choose(self, now: float) -> Endpoint:
        well = [endpoint for endpoint in self.all if endpoint.may_be_tried(now)]
        return min(well or self.all, key=lambda endpoint: (endpoint.in_flight, random.random()))


def run_code_url(given: str, setting: str = "sandbox_fusion_url") -> str:
    """The address to post programs to. A URL that ends with /run_code is taken as it is, query and
    all."""
    try:
        parts = urlsplit(given)
        host = httpx.URL(given).host if parts.port != 0 else ""  # which reads it more strictly
        well = parts.scheme in ("http", "https") and bool(host)
    except (ValueError, httpx.InvalidURL):
        well = False
    if not well:
        raise SettingError(setting, "must look like http://host:8080 or https://host/run_code")
    path = parts.path.rstrip("/")
    path = path if path.endswith("/run_code") else f"{path}/run_code"
    return urlunsplit(parts._replace(path=path))


def _shown(url: str) -> str:
    """The URL for logs and messages: without user, password or query."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


CONNECT_TIMEOUT = 5.0
KEEPALIVE = 4.0  # uvicorn hangs up after 5 s idle; a connection must not be used in that moment


class Connections:
    """Connections, as many as there are calls at once. They belong to one event loop."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = httpx.Headers(headers, encoding="utf-8")  # a token may be any text
        self._tls = httpx.create_ssl_context()
        self._idle: defaultdict[str, deque[tuple[httpx.AsyncClient, float]]] = defaultdict(deque)

    @asynccontextmanager
    async def borrow(self, url: str) -> AsyncIterator[httpx.AsyncClient]:
        idle = self._idle[url]
        while idle and idle[0][1] < time.monotonic() - KEEPALIVE:
            await idle.popleft()[0].aclose()
        client = idle.pop()[0] if idle else self._open(url)
        try:
            yield client
        except BaseException:
            # A call that was cancelled while it connected can fill its pool for good.
            await client.aclose()
            raise
        idle.append((client, time.monotonic()))

    async def close(self) -> None:
        """Close those that nobody uses."""
        for idle in self._idle.values():
            while idle:
                await idle.pop()[0].aclose()

    def _open(self, url: str) -> httpx.AsyncClient:
        try:
            return httpx.AsyncClient(
                headers=self._headers,
                trust_env=not is_loopback(urlsplit(url).hostname or ""),
                verify=self._tls,
                timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),  # the deadline does the rest
                limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEPALIVE),
            )
        except (httpx.InvalidURL, ValueError, ImportError) as problem:  # for SOCKS, a package
            raise SandboxUnfit(
                f"a proxy of HTTP_PROXY, HTTPS_PROXY or ALL_PROXY cannot be used: {problem} "
                "Correct or unset it",
                reason="proxy",
            ) from None


async def refuses(url: str) -> bool:
    """Whether nobody listens there any more: the server has died, and its programs with it.

    False where that is not certain: something between answers in its place, or nothing does.
    """
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            found = await loop.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
            refusals = [await _refuses(str(address[0]), port) for *_, address in found]
    except OSError:
        return False
    return all(refusals) and (is_loopback(parts.hostname or "") or not getproxies())


async def _refuses(host: str, port: int) -> bool:
    try:
        _, connection = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    connection.close()
    return False
