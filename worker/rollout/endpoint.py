"""The model's server behind a gate: each request holds a permit, and reports how it was taken.

While a request that was refused waits for its next attempt it holds no permit, and keeps its place.
"""

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

from ground.backoff import backoff, retry_after_seconds
from limiter import Gate, Permit, Report

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

_ATTEMPTS, _FIRST, _LONGEST = 6, 0.5, 30.0
_REFUSED = (429, 503)


class GatedModel:
    """This model asks the server under a gate. The client does not retry: that would keep the
    permit."""

    def __init__(self, client: "AsyncOpenAI", gate: Gate) -> None:
        self._client = client.with_options(max_retries=0)
        self._gate = gate

    async def create(self, payload: dict[str, Any]) -> "ChatCompletion":
        """The answer; raises as the client does, once no attempt is left."""
        from openai import APIConnectionError, APIStatusError

        ticket = ""
        for attempt in itertools.count(1):
            permit = await self._gate.acquire(ticket=ticket)
            ticket = permit.ticket
            try:
                return await self._asked(permit, payload)
            except (APIConnectionError, APIStatusError) as failure:
                wait = _wait_after(failure, attempt)
                if wait is None:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError

    async def _asked(self, permit: Permit, payload: dict[str, Any]) -> "ChatCompletion":
        report = Report.NOTHING
        try:
            answer: ChatCompletion = await self._client.chat.completions.create(**payload)
            report = Report.SUCCESS
            return answer
        except Exception as failure:
            report = _report_of(failure)
            raise
        finally:
            permit.report(report)
            permit.release()


def _report_of(failure: Exception) -> Report:
    from openai import APIStatusError, APITimeoutError

    if isinstance(failure, APITimeoutError):
        return Report.OVERLOADED
    if not isinstance(failure, APIStatusError):
        return Report.NOTHING
    if failure.status_code in _REFUSED:
        return Report.throttled(_hint(failure))
    return Report.OVERLOADED if failure.status_code >= 500 else Report.NOTHING


def _hint(failure: Any) -> float | None:
    return retry_after_seconds(failure.response.headers.get("retry-after", ""))


def _wait_after(failure: Any, attempt: int) -> float | None:
    """Seconds until the next attempt, or None: there is none."""
    status = getattr(failure, "status_code", 0)  # 0: no answer came
    if attempt >= _ATTEMPTS or not (status == 0 or status == 429 or status >= 500):
        return None
    wait = random.uniform(0, backoff(attempt, _FIRST, _LONGEST))
    hint = _hint(failure) if status else None
    return wait + min(hint or 0.0, _LONGEST)
