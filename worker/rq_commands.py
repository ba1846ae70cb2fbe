"""What RQ can tell a running worker by its channel: stop a job, kill its horse, shut down.

Here a horse is a worker's executions: to kill it is to end them all.
"""

import logging
from collections.abc import Callable
from typing import Any

from worker.shift import Shift

log = logging.getLogger("rq.worker")


class RqCommands:
    """Obeyed on the worker's event loop."""

    def __init__(self, worker: str, shift: Shift, shut_down: Callable[[], object]) -> None:
        self._worker = worker
        self._shift = shift
        self._shut_down = shut_down

    def obey(self, payload: dict[str, Any]) -> None:
        match payload.get("command"):
            case "stop-job":
                self._stop(payload.get("job_id"), None)
            case "stop-execution":
                self._stop(payload.get("job_id"), payload.get("execution_id"))
            case "kill-horse":
                self.kill_all()
            case "shutdown":
                self._shut_down()

    def kill_all(self) -> None:
        self._shift.running.break_off(list(self._shift.running.values()), "killed")

    def _stop(self, job_id: str | None, execution: str | None) -> None:
        found = [
            running
            for running in self._shift.running.values()
            if running.id == job_id and execution in (None, running.execution)
        ]
        if not found:
            log.warning("Worker %s: not working on job %s, command ignored", self._worker, job_id)
        self._shift.running.break_off(found, "stopped")
