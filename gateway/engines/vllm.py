"""vLLM: rendering, tokens in and out, and parsing by its scale-out endpoints; or without them.

A vLLM without `--enable-scale-out` renders and samples by ids too, and parses nothing: it serves
agents that call no tools.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.calls import UNKNOWN_VERSION
from gateway.engines.engine import SHORT, Engine, logprob, spans_of, version_of
from gateway.engines.models import Answer, Chat, Part, Rendered, ToolUse
from gateway.errors import EngineFailed, EngineRefused, EngineUnfit
from ground.recent import Recent

_SUFFIX = 64  # of a prompt, which the parser needs to see


class Vllm(Engine):
    """A vLLM with its scale-out endpoints."""

    kind = "vllm"

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._params: Recent[Mapping[str, Any]] = Recent(1024)

    async def _probe(self) -> None:
        """Probe each endpoint by using it once, with one token."""
        try:
            ids, part = await self._one_token()
            await self.parse(part, ids, SHORT)
        except EngineRefused as refused:
            raise EngineUnfit(
                self.url,
                f"this vLLM does not render, take tokens and parse ({refused.reason}): start it "
                "with --enable-scale-out; or name it `vllm-plain`, for agents without tools",
            ) from None
        if not part.ids:
            raise EngineUnfit(self.url, "it answers no token ids: a newer vLLM does")

    async def render(self, chat: Chat, *, ends: bool = False) -> Rendered:
        found = await self.post("/v1/chat/completions/render", chat.request(self.model, ends=ends))
        return Rendered(found["token_ids"])

    async def _wanted(self, chat: Chat) -> Mapping[str, Any]:
        """The parameters of sampling that the parsers and constraints of a request want. They
        depend on no message, and are asked for once per list of tools."""
        if not (chat.tools or chat.constraints):
            return {}
        key = json.dumps([chat.tools, chat.constraints, chat.kwargs], sort_keys=True)
        if (found := self._params.use(key)) is None:
            asked = Chat([{"role": "user", "content": "a"}], chat.tools, chat.kwargs,
                         chat.constraints)  # fmt: skip
            answer = await self.post("/v1/chat/completions/render", asked.request(self.model))
            found = {
                name: value
                for name, value in answer["sampling_params"].items()
                if name in ("structured_outputs", "guided_decoding", "stop_token_ids", "stop")
                and value
            }
            self._params.put(key, found)
        return found

    async def generate(
        self, ids: Sequence[int], chat: Chat, params: Mapping[str, Any], rid: str
    ) -> Part:
        wanted = await self._wanted(chat)
        stops = {"stop", "stop_token_ids"} & wanted.keys() & params.keys()
        both = {name: [*wanted[name], *params[name]] for name in stops}
        sampling = {**wanted, **params, **both, "logprobs": 0}
        sampling["detokenize"] = bool(sampling.get("stop"))
        body = {
            "request_id": rid, "model": self.model, "token_ids": list(ids),
            "sampling_params": sampling, "stream": True, "output_mode": "tokens",
        }  # fmt: skip
        return await self._sampled("/inference/v1/generate", body)

    async def _sampled(self, path: str, body: Any) -> Part:
        """Sample, and note between which versions of the weights."""
        part = Part(engine=self.url)
        before = await self.version()
        told: list[list[int]] = []
        try:
            async with self.stream(path, body) as events:
                async for event in events:
                    for choice in event.get("choices", ())[:1]:
                        self._take(part, choice)
                        told = spans_of(choice.get("weight_versions") or ()) or told
            # vLLM sends no chunk without tokens, so most aborts end the stream without a word.
            part.finish = part.finish or "abort"
        except EngineFailed as failure:
            part.failure = failure
        part.spans = told
        if told:
            part.settle()
        else:  # while the tokens are parsed
            part.settling = asyncio.create_task(self._bracket(part, before))
        return part

    async def _bracket(self, part: Part, before: int) -> None:
        """Weights that moved between two readings moved at an unknown place."""
        after = await self.version(now=True)
        part.spans = [[len(part.ids), before if before == after else UNKNOWN_VERSION]]
        part.bracket = None if before == after else (before, after)
        part.settle()

    def _take(self, part: Part, choice: Mapping[str, Any]) -> None:
        """Take one chunk into the part: its ids, each with its log-probability or none."""
        ids = choice.get("token_ids") or []
        said = self._logprobs(choice)
        lps = [logprob(value) for value in said]
        part.ids += ids
        part.lps += lps
        part.finish = choice.get("finish_reason") or part.finish
        part.stop = choice.get("stop_reason") or part.stop

    def _logprobs(self, choice: Mapping[str, Any]) -> list[Any]:
        found = choice.get("logprobs") or {}
        return [each.get("logprob") for each in found.get("content") or ()]

    async def parse(self, part: Part, prompt: Sequence[int], chat: Chat) -> Answer:
        choice = {"index": 0, "token_ids": part.ids, "finish_reason": "stop"}
        asked = replace(chat, messages=chat.messages[-1:])  # parsers read tools, not what was said
        found = await self.post(
            "/v1/chat/completions/derender",
            {
                "model": self.model,
                "generate_response": {"request_id": "parse", "choices": [choice]},
                "prompt_token_ids": list(prompt[-_SUFFIX:]),
                "chat_request": asked.request(self.model),
            },
        )
        message = found["choices"][0]["message"]
        calls = [
            ToolUse(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        return Answer(message.get("content") or "", reasoning, calls)

    async def _read_version(self) -> int:
        return version_of((await self.get("/weight_info")).get("weight_version"))


class PlainVllm(Vllm):
    """A vLLM without scale-out: text in and text out of its parsers, tokens in and out of its
    model."""

    kind = "vllm-plain"

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self.parses_tools = False

    async def _probe(self) -> None:
        try:
            _, part = await self._one_token()
        except EngineRefused as refused:
            raise EngineUnfit(self.url, f"this is no vLLM: {refused.reason}") from None
        if not part.ids:
            raise EngineUnfit(
                self.url, "it knows no `return_token_ids`: vLLM 0.10.2 and newer ones do"
            )

    async def render(self, chat: Chat, *, ends: bool = False) -> Rendered:
        body = chat.request(self.model, ends=ends)
        return Rendered((await self.post("/tokenize", body))["tokens"])

    async def _wanted(self, chat: Chat) -> Mapping[str, Any]:
        return {}

    async def generate(
        self, ids: Sequence[int], chat: Chat, params: Mapping[str, Any], rid: str
    ) -> Part:
        body = {
            **params, **chat.constraints, "request_id": rid, "model": self.model,
            "prompt": list(ids), "logprobs": 1, "return_token_ids": True, "stream": True,
        }  # fmt: skip
        return await self._sampled("/v1/completions", body)

    def _logprobs(self, choice: Mapping[str, Any]) -> list[Any]:
        return (choice.get("logprobs") or {}).get("token_logprobs") or []

    async def parse(self, part: Part, prompt: Sequence[int], chat: Chat) -> Answer:
        found = await self.post("/detokenize", {"model": self.model, "tokens": part.ids})
        return Answer(found["prompt"])
