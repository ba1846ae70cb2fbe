"""The demo's agents: each asks the model, runs the program it writes, and stores a trajectory."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from buffer import RolloutBuffer
from penstock.demo.model import TOOL, question, right_answer
from penstock.demo.record import DemoFailed
from worker import CodeQueue, CodeRequest, CodeResult


@dataclass
class Tally:
    """The programs' ends, counted."""

    done: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)


def job_id(queue: str, number: int, sample: int) -> str:
    return f"{queue}-{number}-{sample}"


class Agents:
    """The agents of the demo: `samples` for each question; `stray` questions get too few, as agents
    that died."""

    def __init__(
        self, model_url: str, queue: CodeQueue, buffer: RolloutBuffer, tally: Tally
    ) -> None:
        direct = DefaultAsyncHttpxClient(trust_env=False)  # no proxy reaches it
        self._model = AsyncOpenAI(
            base_url=model_url, api_key="none", max_retries=0, http_client=direct
        )
        self._queue = queue
        self._buffer = buffer
        self._tally = tally

    async def play(self, asked: list[tuple[int, int]]) -> None:
        """Play one agent for each question and sample, all at once."""
        async with asyncio.TaskGroup() as group:
            for number, sample in asked:
                group.create_task(self._one(number, sample))
        await self._model.close()

    async def _one(self, number: int, sample: int) -> None:
        messages: list[Any] = [{"role": "user", "content": question(number)}]
        call = (await self._ask(messages, number, sample)).tool_calls[0]
        code = CodeRequest.model_validate_json(call.function.arguments)
        token = job_id(self._queue.name, number, sample)
        result = await self._queue.run(code, token=token, timeout=90)
        if result.error_kind == "infrastructure":
            raise DemoFailed(
                f"no sandbox could run a program here ({result.message}); "
                "`penstock doctor` says what to do"
            )
        self._note(result)
        said = result.stdout.strip() or result.stderr.strip().splitlines()[-1]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": said},
        ]
        answer = await self._ask(messages, number, sample)
        messages.append({"role": "assistant", "content": answer.content})
        reward = float(f"It is {right_answer(number)}." == answer.content)
        self._tally.rewards.append(reward)
        await self._buffer.write({
            "instance_id": f"question-{number}",
            "uid": f"{number}-{sample}",
            "messages": messages,
            "reward": reward,
        })  # fmt: skip

    async def _ask(self, messages: list[Any], number: int, sample: int) -> Any:
        answer = await self._model.chat.completions.create(
            model="scripted", messages=messages, tools=[TOOL],  # type: ignore[list-item]
            user=f"{number}-{sample}",
        )  # fmt: skip
        return answer.choices[0].message

    def _note(self, result: CodeResult) -> None:
        self._tally.done += 1
        self._tally.ends[result.error_kind] += 1
