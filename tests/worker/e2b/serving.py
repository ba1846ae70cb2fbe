"""A server of E2B's protocol, as a process."""

import os
import subprocess
from pathlib import Path
from typing import Any, Self

import httpx

from tests.harness import commands

KEY = f"e2b_{'a1' * 20}"


class E2bServer:
    """`penstock sandbox serve --e2b`, with sandboxes of its own."""

    def __init__(self, folder: Path, **settings: str) -> None:
        clean = {
            name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        self._env = clean | {
            "PENSTOCK_E2B_API_KEY": KEY,
            "PENSTOCK_IMAGES": str(folder / "images"),
            "PENSTOCK_LOCAL_SANDBOXES": str(folder / "sandboxes"),
            "PENSTOCK_SESSION_HUB_IDLE": "1",
            **settings,
        }
        self.folder = folder / "sandboxes"
        self.url = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self, port: str = "0") -> None:
        words = ["sandbox", "serve", "--port", "0", "--e2b", port]
        self._process = commands.start(words, env=self._env, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()  # Sandbox Fusion's address
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http://"), "the server did not start"

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate()

    def has(self, name: str) -> bool:
        """Whether this machine's hub keeps it."""
        return (self.folder / name).is_symlink()

    def kill(self) -> None:
        """With -9."""
        self._process.kill()
        self._process.communicate()

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2]

    @property
    def options(self) -> dict[str, Any]:
        return {"api_key": KEY, "api_url": self.url, "sandbox_url": self.url}

    def fork(self, name: str, count: int) -> list[str]:
        answer = httpx.post(
            f"{self.url}/sandboxes/{name}/fork", json={"count": count, "timeout": 60},
            headers={"x-api-key": KEY}, timeout=60,
        )  # fmt: skip
        return [one["sandbox"]["sandboxID"] for one in answer.raise_for_status().json()]
