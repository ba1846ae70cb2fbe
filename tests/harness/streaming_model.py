"""An OpenAI-compatible server that streams: the tokens of an answer are 0, 1, 2, … in order.

A request that brings a beginning is gone on with from there. `finish` says where answers end, and
until it is set they go on until the client breaks off, as under an engine that never stops.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.background import answering


class StreamingModel:
    """`begun` holds at which token each request began; `sent` is the highest token that was."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun: list[int] = []
        self.sent = -1
        self.finish: int | None = None
        self.stop = threading.Event()


@contextmanager
def streaming_model() -> Iterator[StreamingModel]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["stream"], "it was asked for the answer at once"
            last = asked["messages"][-1]
            begin = len(last["content"].split()) if last["role"] == "assistant" else 0
            model.begun.append(begin)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            token = begin
            try:
                while not model.stop.wait(0.01):
                    over = model.finish is not None and token >= model.finish
                    self._piece(
                        "" if over else f"{token} ", "stop" if over else None, token - begin
                    )
                    if over:
                        self.wfile.write(b"data: [DONE]\n\n")
                        return
                    model.sent = max(model.sent, token)
                    token += 1
            except OSError:
                """The client broke off."""

        def _piece(self, text: str, reason: str | None, before: int) -> None:
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"content": text},
                "finish_reason": reason,
            }
            if text:
                choice["logprobs"] = {
                    "content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]
                }
            tokens = before + bool(text)
            said = {
                "id": "x", "object": "chat.completion.chunk", "created": 0, "model": "custom",
                "choices": [choice],
                "usage": {"prompt_tokens": 1, "completion_tokens": tokens,
                          "total_tokens": tokens + 1},
            }  # fmt: skip
            self.wfile.write(f"data: {json.dumps(said)}\n\n".encode())
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model = StreamingModel(f"http://127.0.0.1:{server.server_port}")
    with answering(server):
        try:
            yield model
        finally:
            model.stop.set()
