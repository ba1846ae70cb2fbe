"""Trajectories on disk: a file a step, a line of JSON each, `{input, output, score, step}`.

`input` is the prompt as the model sees it, `output` all that followed. A line is written
at once when its trajectory ends. So a killed process loses only those in flight,
and a batch continues from the `request_id`s that are there. Masked ones have a `score` of
null, `traj_masked` and `traj_exit_reason`, and are run again when a batch is resumed.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker.rollout.hermes import call_text, with_tools
from worker.rollout.request import THOUGHTS, Message
from worker.rollout.trajectory import Trajectory


class RolloutDump:
    """The files `<step>.jsonl` of one folder."""

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def path(self, step: int) -> Path:
        return self._folder / f"{step}.jsonl"

    def resume(self, step: int) -> set[str]:
        """The `request_id`s of the step that need not be run again.

        Lines that are masked or were cut off are removed; those of others, without an id, stay.
        """
        path = self.path(step)
        if not path.exists():
            return set()
        with path.open("rb") as lines:  # bytes: a line that was cut off may end within a character
            rows = [_good(line) for line in lines]
        if None in rows:
            aside = path.with_suffix(f".{os.getpid()}.tmp")
            with path.open("rb") as lines, aside.open("wb") as kept:
                kept.writelines(
                    line for line, row in zip(lines, rows, strict=False) if row is not None
                )
            aside.replace(path)
        return {str(row["request_id"]) for row in rows if row and row.get("request_id")}

    def write(self, trajectory: Trajectory) -> None:
        # One write to a file opened for appending: lines of several processes do not mix.
        row = json.dumps(row_of(trajectory), ensure_ascii=False)
        line = f"{row}\n".encode("utf-8", "replace")
        file = os.open(
            self.path(trajectory.request.step), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644
        )
        try:
            while line := line[os.write(file, line) :]:
                pass  # a disk that is full says so at the second try
        finally:
            os.close(file)


def row_of(trajectory: Trajectory) -> dict[str, Any]:
    """The line of one trajectory."""
    request = trajectory.request
    prompt = with_tools(request.messages, request.tool_schemas)
    row: dict[str, Any] = {
        "input": f"{transcript(prompt)}\nassistant\n",
        "output": transcript(trajectory.messages[len(request.messages) :]),
        "score": trajectory.score,
        "step": request.step,
        "request_id": request.request_id,
        "stop_reason": trajectory.stop_reason.value,
    }
    if trajectory.masked:
        row |= {"traj_masked": 1, "traj_exit_reason": trajectory.exit_reason}
    return row


def transcript(messages: Iterable[Message]) -> str:
    """A conversation as text: roles, what they said, and calls as the model writes them."""
    return "\n".join(f"{message['role']}\n{_said(message)}" for message in messages)


def _said(message: Message) -> str:
    content = message.get("content") or ""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if reasoning := next(filter(None, map(message.get, THOUGHTS)), None):
        text = f"<think>\n{reasoning}\n</think>\n{text}"
    calls = (call["function"] for call in message.get("tool_calls", []))
    return "\n".join(
        filter(None, (text, *(call_text(call["name"], call["arguments"]) for call in calls)))
    )


def _good(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None if it is masked, or was cut off."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) and not row.get("traj_masked") else None
