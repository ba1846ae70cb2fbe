"""A worker's sandbox, a share of which dies while programs run in it."""

import asyncio
import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any

from jail import LocalSandbox
from jail.errors import SandboxFailure
from jail.models import CodeRequest, CodeResult

_draw = random.Random()


class Dying(LocalSandbox):
    """The embedded sandbox. With a chance of UNBOTHERED_DEAD what starts its programs is killed as
    one runs, and with it all of them. UNBOTHERED_DEATHS gets a letter for each run."""

    async def run(self, request: CodeRequest) -> CodeResult:
        if _draw.random() < float(os.environ["UNBOTHERED_DEAD"]):
            asyncio.get_running_loop().call_later(_draw.uniform(0, 0.01), _kill)
        try:
            result = await super().run(request)
        except SandboxFailure:
            _noted(b"x")
            raise
        _noted(b".")
        return result


def _kill() -> None:
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one just ended
            for child in thread.read_text().split():
                os.kill(int(child), signal.SIGKILL)


def _noted(letter: bytes) -> None:
    file = os.open(os.environ["UNBOTHERED_DEATHS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, letter)
    finally:
        os.close(file)


def dying(_: Any) -> LocalSandbox:
    """For PENSTOCK_SANDBOX."""
    return Dying.from_settings()
