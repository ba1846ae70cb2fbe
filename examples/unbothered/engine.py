"""An inference engine for the example's model, on SGLang's wire: `python -m … PORT CHECKPOINT`.

A token that is sampled depends on weights, prompt and seed alone: not on what else is under way.
So a step that is done again gives the same tokens, and the same weights.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn

from examples.unbothered import model, task

Body = dict[str, Any]
Versioned = tuple[model.Answer, str]  # and of which weights it is


class Engine:
    """The model's weights, and what SGLang 0.5.23 would answer."""

    def __init__(self, checkpoint: Path) -> None:
        self.weights, _, said = model.loaded(checkpoint)
        self.version = int(said["version"])
        self._waiting: list[tuple[list[int], int, asyncio.Future[Versioned]]] = []
        self.routes: dict[str, Callable[[Body], Body]] = {
            "/health": lambda _: {},
            "/v1/models": lambda _: {"data": [{"id": "steps", "max_model_len": model.PLACES}]},
            "/model_info": lambda _: {"weight_version": str(self.version)},
            "/server_info": lambda _: {"version": "0.5.23", "incremental_streaming_output": False},
            "/v1/tokenize": self._tokenize,
            "/v1/detokenize": lambda asked: {"text": _text(asked["tokens"])},
            "/update_weights_from_disk": self._update,
        }

    def _tokenize(self, asked: Body) -> Body:
        """The template: the operations of the last question, and the mark that begins an answer."""
        words = asked["messages"][-1]["content"].split()
        known = [word for word in words if word in task.OPERATIONS]
        return {"tokens": task.encoded(tuple(known))}

    async def _answer(self, prompt: list[int], seed: int) -> Versioned:
        """With all that came within these milliseconds: a batch costs hardly more than one."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_later(0.003, self._answer_all)
        answer: asyncio.Future[Versioned] = loop.create_future()
        self._waiting.append((prompt, seed, answer))
        return await answer

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for length in {len(prompt) for prompt, _, _ in waiting}:
            batch = [one for one in waiting if len(one[0]) == length]
            draws = [model.drawing(seed, prompt) for prompt, seed, _ in batch]
            found = model.answers(self.weights, [prompt for prompt, _, _ in batch], draws)
            for (_, _, future), answer in zip(batch, found, strict=True):
                future.set_result((answer, str(self.version)))

    async def _generate(self, asked: Body) -> Body:
        prompt = asked["input_ids"]
        seed = asked["sampling_params"].get("sampling_seed") or 0
        (ids, lps), version = await self._answer(prompt, seed)
        most = asked["sampling_params"].get("max_new_tokens") or len(ids)
        ids, lps = ids[:most], lps[:most]
        ended = ids[-1] == task.END
        reason = (
            {"type": "stop", "matched": task.END} if ended else {"type": "length", "length": most}
        )
        meta = {
            "id": asked.get("rid"), "finish_reason": reason, "prompt_tokens": len(prompt),
            "completion_tokens": len(ids), "weight_version": version,
            "output_token_logprobs": [[lp, id, None] for lp, id in zip(lps, ids, strict=True)],
        }  # fmt: skip
        return {"text": _text(ids), "output_ids": ids, "meta_info": meta}

    def _update(self, asked: Body) -> Body:
        self.weights, _, _ = model.loaded(Path(asked["model_path"]))
        self.version = int(asked["weight_version"])
        return {"success": True}

    async def __call__(
        self,
        scope: Body,
        receive: Callable[[], Awaitable[Body]],
        send: Callable[[Body], Awaitable[None]],
    ) -> None:
        """An ASGI application."""
        body = b""
        while (part := await receive())["type"] == "http.request":
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        route, asked = self.routes.get(scope["path"]), json.loads(body or b"{}")
        if scope["path"] == "/generate":
            answer = await self._generate(asked)
        else:
            answer = route(asked) if route else {"error": "no such route"}
        status, head = 404 if "error" in answer else 200, [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def _text(ids: list[int]) -> str:
    return "\n".join(task.WORDS[id] for id in ids)


if __name__ == "__main__":
    uvicorn.run(
        Engine(Path(sys.argv[2])), host="127.0.0.1", port=int(sys.argv[1]), lifespan="off",
        log_level="warning", access_log=False,
    )  # fmt: skip
