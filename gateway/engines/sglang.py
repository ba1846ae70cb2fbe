"""SGLang: rendering by `/v1/tokenize`, tokens in and out by `/generate`, and its two parsers.

A server that streams increments is streamed from, and a part of an answer outlives it. Others send
all tokens again with each chunk; they are asked for the whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.engines.engine import Engine, logprob, spans_of, version_of
from gateway.engines.models import Answer, Chat, Part, Rendered, ToolUse
from gateway.errors import EngineFailed, EngineRefused, EngineUnfit
from ground.recent import Recent

_OPENING = 8  # ids at the end of a prompt, among which a mark of thinking stands
_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}


class Sglang(Engine):
    """SGLang 0.5.23, or one that speaks as it does."""

    kind = "sglang"

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._increments = False
        self._reasoning: str | None = None
        self._tools: str | None = None
        self._texts: Recent[str] = Recent(1024)

    async def _probe(self) -> None:
        info, server = await self.get("/model_info"), await self.get("/server_info")
        self._reasoning, self._tools = info.get("reasoning_parser"), info.get("tool_call_parser")
        self.parses_tools = self._tools is not None
        self._increments = bool(server.get("incremental_streaming_output"))
        try:
            _, part = await self._one_token()
        except EngineRefused as refused:
            raise EngineUnfit(
                self.url,
                f"this SGLang does not render or take tokens ({refused.reason}): 0.5.23 does",
            ) from None
        if not part.ids or not part.lps:
            raise EngineUnfit(self.url, "it answers no token ids with log-probabilities")

    async def render(self, chat: Chat, *, ends: bool = False) -> Rendered:
        body = chat.request(self.model, ends=ends)
        if chat.continues:
            body.pop("add_generation_prompt")  # its own way opens the turn that goes on
        return Rendered((await self.post("/v1/tokenize", body))["tokens"])

    async def generate(
        self, ids: Sequence[int], chat: Chat, params: Mapping[str, Any], rid: str
    ) -> Part:
        part = Part(engine=self.url)
        try:
            if chat.constraints:
                await self._by_chat(part, ids, chat, params, rid)
            else:
                await self._by_ids(part, ids, params, rid)
        except EngineFailed as failure:
            part.failure = failure
        part.settle()
        return part

    async def _by_ids(
        self, part: Part, ids: Sequence[int], params: Mapping[str, Any], rid: str
    ) -> None:
        sampling = {_NAMES.get(name, name): value for name, value in params.items()}
        sampling |= {"no_stop_trim": True, "skip_special_tokens": False}
        body = {
            "rid": rid, "input_ids": list(ids), "sampling_params": sampling,
            "return_logprob": True, "logprob_start_len": -1, "stream": self._increments,
        }  # fmt: skip
        if not self._increments:
            found = await self.post("/generate", body, samples=True)
            self._take(part, found.get("output_ids") or [], found["meta_info"])
            part.text = found.get("text")
            return
        async with self.stream("/generate", body) as events:
            async for event in events:
                self._take(part, event.get("output_ids") or [], event["meta_info"])
                part.text = (part.text or "") + (event.get("text") or "")
        if not part.finish:
            raise EngineFailed(self.url, "the answer ended without a reason")

    def _take(self, part: Part, ids: list[int], meta: Mapping[str, Any]) -> None:
        """Take one answer or increment into the part. The counts of an engine that aborts may lag
        behind its ids."""
        pairs = meta.get("output_token_logprobs") or []
        part.ids += ids
        part.lps += [logprob(pair[0]) for pair in pairs]
        count = meta.get("completion_tokens", len(part.ids))
        del part.ids[count:], part.lps[count:]
        if "weight_versions" in meta:
            part.spans = spans_of(meta["weight_versions"])
        elif "weight_version" in meta:
            # An older one says only the last: true of all, unless it moved on the way.
            part.spans = [[len(part.ids), version_of(meta["weight_version"])]]
        finish = meta.get("finish_reason") or {}
        status = finish.get("status_code")
        if finish.get("type") == "abort" and status is not None:
            raise EngineFailed(
                self.url, f"it broke off with status {status}: {finish.get('message')}",
                overloaded=status in (429, 503),
            )  # fmt: skip
        part.finish = finish.get("type") or part.finish
        part.stop = finish.get("matched", part.stop)

    async def _by_chat(
        self, part: Part, ids: Sequence[int], chat: Chat, params: Mapping[str, Any], rid: str
    ) -> None:
        """The chat endpoint alone binds what is sampled to tools or a schema."""
        body = {
            **chat.request(self.model), **params, "rid": rid, "input_ids": list(ids),
            "logprobs": True, "return_token_ids": True, "return_meta_info": True,
            "no_stop_trim": True, "skip_special_tokens": False,
        }  # fmt: skip
        choice = (await self.post("/v1/chat/completions", body, samples=True))["choices"][0]
        self._take(part, choice["response_token_ids"], choice["meta_info"])
        message = choice["message"]
        calls = [
            ToolUse(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
        reasoning = message.get("reasoning_content") or ""
        part.answer = Answer(message.get("content") or "", reasoning, calls)

    async def parse(self, part: Part, prompt: Sequence[int], chat: Chat) -> Answer:
        if part.answer is not None:
            return part.answer
        ended = isinstance(part.stop, int) and part.ids[-1:] == [part.stop]
        if part.text is not None:
            text = part.text
            text = text.removesuffix(await self._written(tuple(part.ids[-1:]))) if ended else text
        else:
            text = await self._text(part.ids[:-1] if ended else part.ids)
        answer = Answer(text)
        if self._reasoning:
            # A mark that the prompt opened thinking with belongs to the text that is parsed.
            opened = await self._written(tuple(prompt[-_OPENING:]))
            lead = opened[opened.rindex("<think>") :] if _opens(opened) else ""
            asked = {"text": lead + text, "reasoning_parser": self._reasoning}
            found = await self.post("/separate_reasoning", asked)
            answer = Answer(found["text"] or "", found["reasoning_text"] or "")
        if self._tools and chat.tools and chat.calls:
            written: dict[str, Any] = {"text": answer.content, "tools": list(chat.tools),
                     "tool_call_parser": self._tools}  # fmt: skip
            found = await self.post("/parse_function_call", written)
            answer.content = found["normal_text"]
            answer.calls = [ToolUse(call["name"], call["parameters"]) for call in found["calls"]]
        return answer

    async def _written(self, ids: tuple[int, ...]) -> str:
        """The text of ids that come again and again: ends of turns, and of prompts."""
        if (found := self._texts.use(ids)) is None:
            found = await self._text(ids)
            self._texts.put(ids, found)
        return found

    async def _text(self, ids: Sequence[int]) -> str:
        body = {"model": self.model, "tokens": list(ids), "skip_special_tokens": False}
        text: str = (await self.post("/v1/detokenize", body))["text"]
        return text

    async def _read_version(self) -> int:
        return version_of((await self.get("/model_info")).get("weight_version"))


def _opens(text: str) -> bool:
    return text.rfind("<think>") > text.rfind("</think>")
