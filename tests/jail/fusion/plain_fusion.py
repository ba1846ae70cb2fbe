"""A Sandbox Fusion that runs its programs: as upstream does by default, without isolation."""

import asyncio
import base64
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.worker.scripted_answers import Answer, outcome
from tests.worker.scripted_fusion import ScriptedFusion

UNLIMITED = -1


class PlainFusion(ScriptedFusion):
    """Python programs alone; what it answers has upstream's fields and no more."""

    def _accept(self, headers: dict[str, str], body: bytes, connection: Any) -> None:
        self.in_flight += 1
        running = asyncio.ensure_future(self._execute(json.loads(body), connection))
        self._tasks.add(running)
        running.add_done_callback(self._tasks.discard)

    async def _execute(self, request: dict[str, Any], connection: Any) -> None:
        self._end(Answer(body=await asyncio.to_thread(ran, request)), connection)


def ran(request: dict[str, Any]) -> dict[str, Any]:
    """Run the program of such a request here; what a server would answer."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for name, content in request["files"].items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            (here / name).write_bytes(base64.b64decode(content))
        answer = _outcome(request, here)
        found = (name for name in request["fetch_files"] if (here / name).exists())
        files = {name: base64.b64encode((here / name).read_bytes()).decode() for name in found}
        return answer | {"files": files}


def _outcome(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    (folder / "program.py").write_bytes(request["code"].encode())
    memory = request["memory_limit_MB"]
    kilobytes = "unlimited" if memory == UNLIMITED else memory << 10
    command = ["sh", "-c", f'ulimit -v {kilobytes}; exec "$0" program.py', sys.executable]
    with subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(
                (request["stdin"] or "").encode(), request["run_timeout"]
            )
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate()
            code = None
    ends = ("Failed", "TimeLimitExceeded") if code is None else ("Failed", "Finished")
    ends = ("Success", "Finished") if code == 0 else ends
    said = {"stdout": out.decode(errors="replace"), "stderr": err.decode(errors="replace")}
    return outcome(*ends, code, **said)
