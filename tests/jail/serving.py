"""`penstock sandbox serve` in a process of its own, and what asks it."""

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx

# One for all: each would read the machine's certificates anew, for as long as many programs take.
CLIENT = httpx.Client(timeout=150, limits=httpx.Limits(max_keepalive_connections=0))
START = [sys.executable, "-m", "penstock", "sandbox", "serve", "--port", "0"]


def served(*options: str, memory: str = "512", **environment: str) -> Iterator[str]:
    given = {**os.environ, "PENSTOCK_SANDBOX_MEMORY_MB": memory, **environment}
    with subprocess.Popen(
        [*START, *options], stdout=subprocess.PIPE, text=True, env=given
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http"), "it did not start"
        yield url
        server.terminate()


def post(url: str, **fields: Any) -> dict[str, Any]:
    body = {"language": "python", **fields}
    response = CLIENT.post(f"{url}/run_code", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()
