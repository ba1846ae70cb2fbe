"""A model that follows a script: enough of an OpenAI-compatible server to run the example offline.

It writes its calls as text, as Hermes and Qwen models do. In one conversation it writes a
call wrongly, and does better when told; in another it does not let itself be helped.
"""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def call(name: str, **arguments: str) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


def interpret(program: str) -> str:
    return call("code_interpreter", code=program)


# By a word of the question: what the model says, turn by turn.
# {seen} is what the last tool answered.
SCRIPTS = {
    "John": (
        "The bonus is 10% of the pay.\n" + interpret("print(200000 + 200000 * 10 / 100)"),
        "Let me check it.\n" + call("calc_gsm8k_reward", answer="{seen}"),
        "John makes $220,000.\n#### 220000.0",
    ),
    "baker": (
        call("code_interpreter", program="print(14 * 24 - 50)"),
        "Of course, it is called code.\n" + interpret("print(14 * 24 - 50)"),
        "The baker sells them.\n#### {seen}",
    ),
    "tank": (
        "Two ways at once.\n" + interpret("print(900 // (35 - 5))") + "\n"
        + interpret("level = minutes = 0\nwhile level < 900:\n    level += 30\n    minutes += 1\n"
                    "print(minutes)"),
        "Both agree.\n#### 30",
    ),
    "Lena": ("That is 12 * 5 + 3 * 5 pages.\n#### 75",),
}  # fmt: skip


def reply(messages: list[dict[str, Any]]) -> str:
    question = next(message["content"] for message in messages if message["role"] == "user")
    script = next(script for word, script in SCRIPTS.items() if word in question)
    turn = min(sum(m["role"] == "assistant" for m in messages), len(script) - 1)
    seen = messages[-1]["content"].removeprefix("<tool_response>\n").partition("\n")[0]
    return script[turn].replace("{seen}", seen)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = reply(asked["messages"])
        prompt = sum(len(message["content"]) for message in asked["messages"]) // 4
        message = {"role": "assistant", "content": text}
        self.answer(
            {
                "id": "scripted", "object": "chat.completion", "created": 0, "model": "scripted",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {
                    "prompt_tokens": prompt, "completion_tokens": len(text) // 4,
                    "total_tokens": prompt + len(text) // 4,
                },
            }
        )  # fmt: skip

    def do_GET(self) -> None:
        model = {"id": "scripted", "object": "model", "created": 0, "owned_by": "nobody"}
        self.answer({"object": "list", "data": [model]})

    def answer(self, body: Any) -> None:
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        """Nothing on stderr."""


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The base URL of a server that lives as long as the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
