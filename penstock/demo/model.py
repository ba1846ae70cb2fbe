"""A scripted OpenAI-compatible model: it answers with a tool call, then with what the tool said.

What it writes is known in advance, and is wrong on purpose now and then: a reward
that is always 1 would show nothing.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAUSE = 0.15
SLOW, SLOW_PAUSE = (0, 0), 2.5  # one program is long enough to be seen running
TOOL = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs a program and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string"}},
            "required": ["code"],
        },
    },
}


def question(number: int) -> str:
    return f"What is the sum of the squares of 1 to {number + 3}?"


def right_answer(number: int) -> int:
    return sum(n * n for n in range(1, number + 4))


def program(number: int, sample: int) -> str:
    """Every third sample forgets the last number; every seventh does not parse."""
    pause = SLOW_PAUSE if (number, sample) == SLOW else PAUSE
    if (number + sample) % 7 == 6:
        return f"import time; time.sleep({pause})\nprint(sum(n * n for n in range(1, {number + 4})"
    upto = number + (3 if (number + sample) % 3 == 2 else 4)
    return f"import time; time.sleep({pause})\nprint(sum(n * n for n in range(1, {upto})))"


@contextmanager
def scripted_model() -> Iterator[str]:
    """A scripted model's server; gives its base URL."""
    with _Server(("127.0.0.1", 0), _Model) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    request_queue_size = 512  # all agents ask at once
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that ends while it is connected is no error of the model's."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(_completion(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The story says it better."""


def _completion(asked: dict[str, Any]) -> dict[str, Any]:
    last = asked["messages"][-1]
    if last["role"] == "tool":
        message: dict[str, Any] = {"role": "assistant", "content": f"It is {last['content']}."}
        reason = "stop"
    else:
        number, sample = (int(part) for part in asked["user"].split("-"))
        code = json.dumps({"code": program(number, sample)})
        call = {"id": "call-1", "type": "function",
                "function": {"name": "python", "arguments": code}}  # fmt: skip
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        reason = "tool_calls"
    return {
        "id": "scripted", "object": "chat.completion", "created": 0, "model": asked["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
    }  # fmt: skip
