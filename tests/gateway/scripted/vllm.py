"""The scripted engine with the wire of vLLM: rendering, tokens in and out, parsing, control."""

from __future__ import annotations

import json
import sys
from typing import Any

import uvicorn

from tests.gateway.scripted.engine import (
    Fault,
    Generation,
    Refused,
    Reply,
    ScriptedEngine,
    last,
)
from tests.gateway.scripted.model import BOS, Model, babble, decode, encode, shell


class ScriptedVllm(ScriptedEngine):
    """vLLM with its scale-out endpoints, or `plain`, without them."""

    def __init__(self, *args: Any, plain: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.routes = dict(_ROUTES if not plain else _PLAIN)

    async def version_info(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return {"version": "0.33.0"}

    async def models(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        model = {"id": "m", "object": "model", "max_model_len": self.max_model_len}
        return {"object": "list", "data": [model]}

    async def weight_info(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.told.append(self.version)
        return {"weight_version": str(self.told[-1])}

    async def set_version(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.version = int(body["new_version"])
        return {"success": True}

    async def paused(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.pause(query.get("mode", "abort"))
        return {"status": "paused"}

    async def resumed(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        self.resume()
        return {"status": "resumed"}

    async def tokenize(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        if "prompt" in body:
            ids = encode(body["prompt"])
            ids = [BOS, *ids] if body.get("add_special_tokens", True) and self.template.bos else ids
        else:
            ids = self.render(body)
        return {"count": len(ids), "max_model_len": self.max_model_len, "tokens": ids}

    async def detokenize(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return {"prompt": decode(body["tokens"], skip_special=True)}

    async def rendered(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        ids = self.render(body)
        if len(ids) >= self.max_model_len:
            raise _too_long(self.max_model_len, len(ids))
        params = {
            name: body[name]
            for name in ("temperature", "top_p", "max_tokens", "stop", "seed")
            if body.get(name) is not None
        }
        if body.get("tool_choice") == "required" or body.get("response_format"):
            params["structured_outputs"] = {"json": {"type": "object"}}
        return {"request_id": "chatcmpl-render", "token_ids": ids, "sampling_params": params}

    async def tokens(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """`/inference/v1/generate`."""
        prompt, params = body["token_ids"], body["sampling_params"]
        rid = "generate-tokens-" + body.get("request_id", "x")
        generation = self._start(rid, prompt, body, params)
        logprobs = params.get("logprobs") is not None
        if not body.get("stream"):
            done = await last(generation)
            choice = {
                "index": 0, "finish_reason": done.finish, "token_ids": done.sampled,
                "logprobs": _logprobs(done, 0) if logprobs else None,
            }  # fmt: skip
            return {"request_id": rid, "choices": [choice], "usage": _usage(done)}
        sent = 0
        async for done in generation:
            fault = done.fault
            if fault and fault.kind == "error chunk" and len(done.sampled) >= fault.after:
                await reply.event(Refused(500, "the engine failed").body())
                break
            choice = {
                "index": 0, "finish_reason": done.finish, "token_ids": done.sampled[sent:],
                "logprobs": _logprobs(done, sent) if logprobs else None,
            }  # fmt: skip
            if fault and fault.kind == "no ids":
                del choice["token_ids"]
            lost = fault is not None and fault.kind == "lost finish" and done.finish
            if not done.sampled[sent:] and not (fault and fault.kind == "no ids"):
                continue  # as vLLM does, also with the chunk that says of an abort
            if not lost:
                await reply.event({"request_id": rid, "choices": [choice]})
            elif done.sampled[sent:]:
                await reply.event(
                    {"request_id": rid, "choices": [choice | {"finish_reason": None}]}
                )
            sent = len(done.sampled)
        else:
            await reply.event({"request_id": rid, "choices": [], "usage": _usage(done)})
        await reply.event("[DONE]")
        if fault and fault.kind == "chunk after end":
            late = {"index": 0, "finish_reason": None, "token_ids": [17], "logprobs": None}
            await reply.event({"request_id": rid, "choices": [late]})
        await reply.end()
        return None

    async def derender(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        choice = body["generate_response"]["choices"][0]
        asked = body.get("chat_request") or {}
        text = decode(choice["token_ids"])
        parsed = self.parse(text, body.get("prompt_token_ids") or [])
        calls = [
            {
                "id": f"chatcmpl-tool-{n}-{len(text)}", "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for n, (name, arguments) in enumerate(parsed.calls)
        ]  # fmt: skip
        if not asked.get("tools"):
            calls = []
        message = {
            "role": "assistant", "content": parsed.content, "reasoning": parsed.reasoning,
            "tool_calls": calls,
        }  # fmt: skip
        finish = "tool_calls" if calls else choice["finish_reason"]
        return {
            "id": "chatcmpl-x", "object": "chat.completion", "created": 0, "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 0, "completion_tokens": len(choice["token_ids"])},
        }  # fmt: skip

    async def completions(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """`/v1/completions` with ids."""
        prompt = body["prompt"]
        params = body | {"max_tokens": body.get("max_tokens", 16)}
        sent = 0
        async for done in self._start("cmpl-x", prompt, body, params):
            if body.get("stream"):
                await reply.event(_completion(done, sent))
                sent = len(done.sampled)
        if not body.get("stream"):
            return _completion(done, 0)
        await reply.event("[DONE]")
        await reply.end()
        return None

    async def chat(self, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        """`/v1/chat/completions`, whole; what a plain proxy stands in front of."""
        prompt = self.render(body)
        done = await last(self._start("chatcmpl-x", prompt, body, body))
        answer = {
            "model": "m", "prompt_token_ids": prompt,
            "generate_response": {
                "choices": [{"token_ids": done.sampled, "finish_reason": done.finish}]
            },
            "chat_request": body,
        }  # fmt: skip
        found = await self.derender(answer, reply, query)
        found["usage"] = _usage(done)
        if body.get("return_token_ids"):
            found["prompt_token_ids"] = prompt
            found["choices"][0] |= {"token_ids": done.sampled, "logprobs": _logprobs(done, 0)}
        return found

    def _start(self, rid: str, prompt: list[int], body: dict[str, Any], params: Any) -> Any:
        if len(prompt) >= self.max_model_len:
            raise _too_long(self.max_model_len, len(prompt))
        most = params.get("max_tokens") or self.max_model_len
        stops = params.get("stop") or []
        return self.generate(
            rid, prompt, body, most=min(most, self.max_model_len - len(prompt)),
            stops=[stops] if isinstance(stops, str) else stops,
        )  # fmt: skip


def _too_long(most: int, given: int) -> Refused:
    return Refused(
        400,
        f"This model's maximum context length is {most} tokens. However, your request has {given}"
        " input tokens. Please reduce the length of the input messages.",
    )


def _logprobs(done: Generation, start: int) -> dict[str, Any]:
    pairs = zip(done.sampled[start:], done.logprobs[start:], strict=False)
    return {"content": [{"token_id": t, "logprob": lp} for t, lp in pairs]}


def _completion(done: Generation, start: int) -> dict[str, Any]:
    tokens = done.sampled[start:]
    fault = done.fault.kind if done.fault else ""
    choice = {
        "index": 0, "text": decode(tokens),
        "finish_reason": None if fault == "lost finish" else done.finish,
        "stop_reason": done.stop if isinstance(done.stop, str) else None,
        "logprobs": {"tokens": [decode([t]) for t in tokens],
                     "token_logprobs": done.logprobs[start:]},
    }  # fmt: skip
    if fault != "no ids":
        choice["token_ids"] = tokens
    return {"id": "cmpl-x", "object": "text_completion", "choices": [choice]}


def _usage(done: Generation) -> dict[str, int]:
    prompt, sampled = len(done.prompt), len(done.sampled)
    return {
        "prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled,
    }  # fmt: skip


_PLAIN = {
    ("GET", "/version"): ScriptedVllm.version_info,
    ("GET", "/v1/models"): ScriptedVllm.models,
    ("GET", "/weight_info"): ScriptedVllm.weight_info,
    ("POST", "/update_weight_version"): ScriptedVllm.set_version,
    ("POST", "/pause"): ScriptedVllm.paused,
    ("POST", "/resume"): ScriptedVllm.resumed,
    ("POST", "/tokenize"): ScriptedVllm.tokenize,
    ("POST", "/detokenize"): ScriptedVllm.detokenize,
    ("POST", "/v1/completions"): ScriptedVllm.completions,
    ("POST", "/v1/chat/completions"): ScriptedVllm.chat,
}
_ROUTES = _PLAIN | {
    ("POST", "/v1/chat/completions/render"): ScriptedVllm.rendered,
    ("POST", "/inference/v1/generate"): ScriptedVllm.tokens,
    ("POST", "/v1/chat/completions/derender"): ScriptedVllm.derender,
}


def main(kind: type[ScriptedEngine], port: str, options: str = "{}") -> None:
    """Serve it as a process of its own; faults are posted to `/faults`, the log is at `/log`."""

    given = json.loads(options)
    engine = kind(Model(script={"babble": babble, "shell": shell}[given.pop("script", "babble")]),
                  **given)  # fmt: skip

    async def faults(_: Any, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        engine.faults.append(Fault(**body))
        return {}

    async def log(_: Any, body: dict[str, Any], reply: Reply, query: dict[str, str]) -> Any:
        return [
            {"prompt": each.prompt, "sampled": each.sampled, "versions": each.versions}
            for each in engine.log
        ]

    engine.routes |= {("POST", "/faults"): faults, ("GET", "/log"): log}
    uvicorn.run(
        engine, host="127.0.0.1", port=int(port), log_config=None, lifespan="off", access_log=False
    )


if __name__ == "__main__":
    main(ScriptedVllm, *sys.argv[1:])
