"""What work reports of its service to a gate that adapts: the sandbox's answers, the model's."""

import httpx
import pytest
from openai import AsyncOpenAI

from jail.errors import SandboxBroken, SandboxBusy, SandboxTimeout
from jail.models import CodeRequest, CodeResult
from limiter import Adaptive, TokenBucket
from worker.rollout import endpoint
from worker.run.execution import RetryPolicy, execute
from worker.run.turn import GateTurn, JobAtHand

QUICK = RetryPolicy(first=0.001, longest=0.001)


class Scripted:
    """A sandbox that answers what it is given, one after another."""

    name = "scripted"

    def __init__(self, *answers):
        self._answers = list(answers)

    async def run(self, request):
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answer", "throttled", "overloaded"),
    [
        (SandboxBusy("full", reason="http_429", retry_after=0.0), 1, 0),
        (SandboxBusy("full", reason="http_503"), 1, 0),
        (SandboxBusy("late", reason="http_504"), 0, 1),
        (SandboxTimeout("late", reason="timeout"), 0, 1),
        (SandboxBroken("broken", reason="http_500"), 0, 1),
        (SandboxBroken("broken", reason="sandbox_error"), 0, 0),
    ],
)
async def test_what_the_sandbox_answers_reaches_the_gate(redis, answer, throttled, overloaded):
    gate = TokenBucket(redis, "g", limit=Adaptive(start=8, min=1, max=16))
    at_hand = JobAtHand(GateTurn(gate))
    request = CodeRequest(code="print(1)")
    result = await execute(request, at_hand, Scripted(answer, CodeResult(status="Success")), QUICK)
    assert result.status == "Success"
    adaptive = (await gate.status()).adaptive
    assert adaptive is not None
    assert (adaptive.throttled, adaptive.overloaded) == (throttled, overloaded)
    assert (await gate.status()).in_flight == 0


async def test_what_the_models_server_answers_reaches_the_gate(redis, monkeypatch):
    monkeypatch.setattr(endpoint, "_FIRST", 0.001)
    answers = [
        httpx.Response(429, headers={"retry-after": "0"}, json={}),
        httpx.Response(500, json={}),
        httpx.Response(200, json={"id": "1", "choices": [], "created": 1, "model": "m"}),
    ]
    transport = httpx.MockTransport(lambda _: answers.pop(0))
    client = AsyncOpenAI(
        base_url="http://model/v1", api_key="-", http_client=httpx.AsyncClient(transport=transport)
    )
    gate = TokenBucket(redis, "g", limit=Adaptive(start=8, min=1, max=16))
    answer = await endpoint.GatedModel(client, gate).create({"model": "m", "messages": []})
    assert answer.id == "1"
    adaptive = (await gate.status()).adaptive
    assert adaptive is not None
    assert (adaptive.throttled, adaptive.overloaded) == (1, 1)
