"""An OpenAI-compatible server that answers from a script."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.background import answering

Answer = tuple[int, dict[str, Any]]


def said(text: str | None, reason: str = "stop", tokens: int = 3, prompt: int = 1) -> Answer:
    """One choice, as a chat completion."""
    return _completion({"role": "assistant", "content": text}, reason, tokens, prompt)


def called(*calls: tuple[str, str], text: str = "", tokens: int = 3, prompt: int = 1) -> Answer:
    """One choice that calls functions: their names, and their arguments as text."""
    written = [
        {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text, "tool_calls": written}
    return _completion(message, "tool_calls", tokens, prompt)


def refused(status: int, words: str, code: str | None = None) -> Answer:
    """An error, in OpenAI's form."""
    return status, {"error": {"message": words, "type": "invalid_request_error", "code": code}}


def _completion(message: dict[str, Any], reason: str, tokens: int, prompt: int) -> Answer:
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
    return 200, {
        "id": "x", "object": "chat.completion", "created": 0, "model": "custom",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage,
    }  # fmt: skip


class ScriptedModel:
    """`requests` holds what was asked, in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []


class _Server(ThreadingHTTPServer):
    request_queue_size = 1024


@contextmanager
def scripted_model(answer: Callable[[dict[str, Any], int], Answer]) -> Iterator[ScriptedModel]:
    """A model whose answer to the n-th request is `answer(request, n)`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            asked = json.loads(self.rfile.read(size))
            with guard:
                model.requests.append(asked)
                number = len(model.requests)
            self._answer(*answer(asked, number))

        def do_GET(self) -> None:
            """Its list of models."""
            self._answer(200, {"object": "list", "data": [{"id": "custom", "object": "model"}]})

        def _answer(self, status: int, found: dict[str, Any]) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    guard = threading.Lock()
    server = _Server(("127.0.0.1", 0), Handler)
    model = ScriptedModel(f"http://127.0.0.1:{server.server_port}")
    with answering(server):
        yield model
