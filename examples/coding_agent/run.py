"""A coding agent from image to reward: a sandbox, a model that edits and tests, a grade in a fork.

    python examples/coding_agent/run.py [REDIS_URL]

Without a URL it starts a private server. It prints

    careful: 3 turns, own tests pass, reward 1.0
    cheater: 3 turns, own tests pass, reward 0.0
    group median: advantages 1.0, -1.0
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import scripted_model
import task

from buffer import RolloutBuffer, TaskConfig
from ground import EmbeddedServer
from jail.sessions import CommandRequest, LocalSessions, Session, SessionRequest

PENSTOCK = Path(sys.executable).with_name("penstock")
TURNS, SECONDS = 8, 60.0
WANTED = re.compile(r"```bash\n(.*?)```", re.DOTALL)


async def attempt(sessions: LocalSessions, model: str) -> dict[str, Any]:
    """One trajectory, from an untouched copy of the task to its reward."""
    session = await sessions.open(SessionRequest(image=task.NAME, ttl=600, tied=True))
    try:
        messages = [{"role": "user", "content": task.ASKED}]
        passed = False
        for _ in range(TURNS):
            said = scripted_model.answer(model, messages, task.TESTS)
            messages.append({"role": "assistant", "content": said})
            if not (wanted := WANTED.search(said)):
                break
            passed, seen = await run(session, wanted[1])
            messages.append({"role": "user", "content": seen})
        reward = await grade(session)
    finally:
        await session.end()
    turns = sum(message["role"] == "assistant" for message in messages)
    print(f"{model}: {turns} turns, own tests {'pass' if passed else 'fail'}, reward {reward}")
    return {"uid": model, "instance_id": "median", "messages": messages, "reward": reward}


async def run(session: Session, command: str) -> tuple[bool, str]:
    """What the model sees of a command: how it ended, and what it wrote."""
    asked = CommandRequest(["sh", "-c", command], cwd="/repo", timeout=SECONDS)
    ran = await session.run(asked, most=64 << 10)
    text = (ran.stdout + ran.stderr).decode(errors="replace")
    ended = ran.exit.why or f"exit status {ran.exit.code}"
    return ran.exit.code == 0, f"{text}\n[{ended}]"


async def grade(session: Session) -> float:
    """In a fork, so that the hidden tests are never where the model's processes run."""
    judge = await session.fork(SessionRequest(image=task.NAME, ttl=120, tied=False))
    try:
        await judge.write(task.HIDDEN_AT, task.HIDDEN.encode())
        passed, _ = await run(judge, task.GRADING)
        return float(passed)
    finally:
        await judge.end()


async def afternoon(url: str, sessions: LocalSessions) -> None:
    buffer = RolloutBuffer(url, "coding", TaskConfig(group_size=len(scripted_model.SCRIPTS)))
    try:
        # The buffer knows how often it was trained on: what came for such a round would be late.
        epoch = (await buffer.catalog.finished_rounds())["median"]
        for model in scripted_model.SCRIPTS:
            await buffer.write(await attempt(sessions, model) | {"round_number": epoch})
        batch = await buffer.take(2, wait=10)
        if batch is None:
            raise SystemExit("no group became ready to train on")
        rewards = ", ".join(f"{item['reward']:.1f}" for item in batch.items)
        print(f"group {batch.items[0]['instance_id']}: advantages {rewards}")
        await buffer.ack(batch)
    finally:
        await buffer.aclose()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("PENSTOCK_IMAGES", f"{folder}/images")
        root = Path(folder, "root")
        task.make_image(root)
        subprocess.run(
            [PENSTOCK, "images", "add", str(root), "--name", task.NAME],
            stdout=subprocess.DEVNULL,
            check=True,
        )
        if len(sys.argv) > 1:
            asyncio.run(afternoon(sys.argv[1], LocalSessions()))
            return
        with EmbeddedServer(Path(folder, "redis")) as server:
            asyncio.run(afternoon(server.url, LocalSessions()))


if __name__ == "__main__":
    main()
