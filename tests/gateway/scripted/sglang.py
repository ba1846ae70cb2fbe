"""The scripted engine with the wire of SGLang: rendering, `/generate`, its parsers, control."""

from __future__ import annotations

import sys
from typing import Any

from tests.gateway.scripted.engine import Generation, Refused, Reply, ScriptedEngine, last
from tests.gateway.scripted.model import PAD, decode, encode
from tests.gateway.scripted.vllm import main


class ScriptedSglang(ScriptedEngine):
    """SGLang 0.5.23. `incremental` is the server's `incremental_streaming_output`."""

    def __init__(
        self, *args: Any, incremental: bool = False, spans: bool = True, **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self.incremental = incremental
        self.tells_spans = spans
        self.parsers: tuple[str | None, str | None] = ("qwen3", "qwen25")
        self.routes = dict(_ROUTES)

    async def model_info(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return {
            "model_path": "m", "served_model_name": "m", "weight_version": str(self.version),
            "reasoning_parser": self.parsers[0], "tool_call_parser": self.parsers[1],
        }  # fmt: skip

    async def server_info(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return {"version": "0.5.23", "incremental_streaming_output": self.incremental}

    async def models(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        model = {"id": "m", "object": "model", "max_model_len": self.max_model_len}
        return {"object": "list", "data": [model]}

    async def set_version(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.version = int(body["new_version"])
        return {"success": True}

    async def paused(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.pause(body.get("mode", "abort"))
        return {}

    async def resumed(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.resume()
        return {}

    async def tokenize(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        ids = encode(body["prompt"]) if "prompt" in body else self.render(body)
        return {"tokens": ids, "count": len(ids), "max_model_len": self.max_model_len}

    async def detokenize(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return {"text": decode(body["tokens"], skip_special=body.get("skip_special_tokens", True))}

    async def generated(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """`/generate`."""
        prompt = body["input_ids"]
        generation = self._start(body.get("rid", "x"), prompt, body, body["sampling_params"])
        if not body.get("stream"):
            done = await last(generation)
            return self._out(done, 0)
        sent = 0
        async for done in generation:
            fault = done.fault
            if fault and fault.kind == "error chunk" and len(done.sampled) >= fault.after:
                meta = {"type": "abort", "status_code": 503, "message": "the engine failed"}
                out = self._out(done, sent)
                out["meta_info"]["finish_reason"] = meta
                await reply.event(out)
                break
            out = self._out(done, sent if self.incremental else 0)
            if fault and fault.kind == "duplicate" and done.finish == "abort" and done.sampled:
                out["output_ids"] = [*out["output_ids"], done.sampled[-1]]
                logprobs = out["meta_info"]["output_token_logprobs"]
                again = [done.logprobs[-1], done.sampled[-1], None]
                out["meta_info"]["output_token_logprobs"] = [*logprobs, again]
            if fault and fault.kind == "lost finish":
                out["meta_info"]["finish_reason"] = None
            await reply.event(out)
            sent = len(done.sampled)
        await reply.event("[DONE]")
        if fault and fault.kind == "chunk after end":
            late = Generation("x", prompt, [PAD], [0], [0.0])
            await reply.event(self._out(late, 0))
        await reply.end()
        return None

    def _out(self, done: Generation, start: int) -> dict[str, Any]:
        finish: dict[str, Any] | None = None
        if done.finish == "stop":
            finish = {"type": "stop", "matched": done.stop}
        elif done.finish == "length":
            finish = {"type": "length", "length": len(done.sampled)}
        elif done.finish == "abort":
            finish = {"type": "abort", "message": "Aborted"}
        pairs = zip(done.logprobs[start:], done.sampled[start:], strict=False)
        meta: dict[str, Any] = {
            "id": done.rid, "finish_reason": finish, "prompt_tokens": len(done.prompt),
            "completion_tokens": len(done.sampled), "cached_tokens": 0, "num_retractions": 0,
            "output_token_logprobs": [[lp, token, None] for lp, token in pairs],
            "weight_version": str(done.versions[-1] if done.versions else self.version),
        }  # fmt: skip
        if self.tells_spans:
            meta["weight_versions"] = done.spans()
        trims = (
            not done.body["sampling_params"].get("no_stop_trim")
            if "sampling_params" in (done.body)
            else False
        )
        text = done.text if trims else decode(done.sampled)
        if self.incremental:  # half a character is held back until the rest of it comes
            text = text if done.finish else text.rstrip("\ufffd")
            text = text[len(decode(done.sampled[:start]).rstrip("\ufffd")) :]
        if done.fault and done.fault.kind == "no ids":
            del meta["output_token_logprobs"]
            return {"text": text, "meta_info": meta}
        return {"text": text, "output_ids": done.sampled[start:], "meta_info": meta}

    async def chat(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """`/v1/chat/completions` with `input_ids`, whole."""
        if body.get("stream") and body.get("return_token_ids"):
            raise Refused(400, "return_token_ids is not supported with stream")
        prompt = body.get("input_ids") or self.render(body)
        params = {"max_new_tokens": body.get("max_tokens"), "stop": body.get("stop")}
        done = await last(self._start("chat-x", prompt, body, params))
        parsed = self.parse(done.text, prompt)
        calls = [
            {
                "id": f"call_{n}", "index": n, "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for n, (name, arguments) in enumerate(parsed.calls)
        ]  # fmt: skip
        message = {
            "role": "assistant", "content": parsed.content or "",
            "reasoning_content": parsed.reasoning, "tool_calls": calls or None,
        }  # fmt: skip
        out = self._out(done, 0)
        choice = {
            "index": 0, "message": message, "matched_stop": done.stop,
            "finish_reason": "tool_calls" if calls else done.finish,
            "prompt_token_ids": prompt, "response_token_ids": done.sampled,
            "meta_info": out["meta_info"],
        }  # fmt: skip
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(done.sampled)}
        usage["total_tokens"] = sum(usage.values())
        return {
            "id": "chat-x", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [choice], "usage": usage,
            "metadata": {"weight_version": out["meta_info"]["weight_version"]},
        }  # fmt: skip

    async def function_calls(
        self, body: dict[str, Any], reply: Reply, query: dict[str, str]
    ) -> Any:
        parsed = self.parse(body["text"], [])
        calls = [
            {"tool_index": n, "name": name, "parameters": arguments}
            for n, (name, arguments) in enumerate(parsed.calls)
        ]
        return {"normal_text": parsed.content, "calls": calls}

    async def reasoning(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """Only the reasoning is taken out; the calls stay in the text."""
        opened = body["text"].startswith("<think>")
        if not opened and "</think>" not in body["text"]:
            return {"reasoning_text": "", "text": body["text"]}
        before, _, after = body["text"].removeprefix("<think>").partition("</think>")
        return {"reasoning_text": before.strip("\n"), "text": after.lstrip("\n")}

    def _start(self, rid: str, prompt: list[int], body: dict[str, Any], params: Any) -> Any:
        if len(prompt) >= self.max_model_len:
            raise Refused(
                400,
                f"The input ({len(prompt)} tokens) is longer than the model's context length "
                f"({self.max_model_len} tokens).",
            )
        stops = params.get("stop") or []
        most = params.get("max_new_tokens") or self.max_model_len
        return self.generate(
            rid, prompt, body, most=min(most, self.max_model_len - len(prompt)),
            stops=[stops] if isinstance(stops, str) else stops,
        )  # fmt: skip


_ROUTES = {
    ("GET", "/model_info"): ScriptedSglang.model_info,
    ("GET", "/server_info"): ScriptedSglang.server_info,
    ("GET", "/v1/models"): ScriptedSglang.models,
    ("POST", "/update_weight_version"): ScriptedSglang.set_version,
    ("POST", "/pause_generation"): ScriptedSglang.paused,
    ("POST", "/continue_generation"): ScriptedSglang.resumed,
    ("POST", "/v1/tokenize"): ScriptedSglang.tokenize,
    ("POST", "/v1/detokenize"): ScriptedSglang.detokenize,
    ("POST", "/generate"): ScriptedSglang.generated,
    ("POST", "/v1/chat/completions"): ScriptedSglang.chat,
    ("POST", "/parse_function_call"): ScriptedSglang.function_calls,
    ("POST", "/separate_reasoning"): ScriptedSglang.reasoning,
}


if __name__ == "__main__":
    main(ScriptedSglang, *sys.argv[1:])
