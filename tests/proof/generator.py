"""A generator: `python generator.py FOLDER NAME`, killed and started as often as you like.

It takes slots of the buffer. For each sample of a group it holds a permit, keeps a session sandbox
for the tools of an agent, asks the gateways turn by turn, has a program run by the queue, and
finalizes the session. What it cannot finish it gives back, for another generator to make.
"""

import asyncio
import contextlib
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import httpx

from buffer import Slot
from ground import PenstockError, SettingError
from tests.gateway.agents import TOOLS
from tests.proof import programs, setting
from tests.proof.journal import Journal, read
from worker import CodeQueue
from worker.lifecycle import FILE_ERRORS, SandboxLifecycle

LANES = 4
TURNS = 3


class Refused(Exception):
    """The gateway says that something is over: its session, or its slot."""


class Generator:
    """One life of a generator."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._run = setting.Run.of(folder)
        self._journal = Journal(folder, name)
        before = [
            line["number"] for line in read(folder, name) if line["what"] == "asks for a slot"
        ]
        self._numbers = itertools.count(max(before, default=-1) + 1)
        self._chance = random.Random(f"{self._run.seed}/{name}/{len(before)}")
        self._buffer = setting.buffer(self._run.redis)
        self._gate = setting.gate(self._run.redis)
        self._queue = CodeQueue(self._run.redis, "code")
        self._sandboxes = SandboxLifecycle(self._run.redis, "local")
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.AsyncClient(timeout=100, limits=limits, trust_env=False)
        self._journal.watch_for_standstill()

    async def work(self) -> None:
        while await self._buffer.published(after=-1) == -1:
            pass
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES):
                lanes.create_task(self._lane())
        while not await self._nothing_left():  # what another left behind
            await self._one_group([])

    async def _lane(self) -> None:
        """Group after group, until the run is to end."""
        while not (self._folder / "stop").exists():
            number = next(self._numbers)
            self._journal.add("asks for a slot", number=number)
            await self._one_group([f"{self._name}-{number}"])

    async def _one_group(self, wishes: list[str]) -> None:
        try:
            for slot in await self._buffer.admit(1, instances=wishes, wait=1.0):
                await self._group(slot)
        except SettingError:
            raise  # our own mistake
        except PenstockError as error:
            self._journal.add("failed", error=type(error).__name__, said=str(error))
            await asyncio.sleep(0.1)

    async def _nothing_left(self) -> bool:
        try:
            now = await self._buffer.versions()
        except PenstockError:
            return False
        return not (now.slots or now.parked or now.again)

    async def _group(self, slot: Slot) -> None:
        if slot.instance_id is None:  # there is no group that anybody left behind
            await slot.end()
            await asyncio.sleep(0.2)
            return
        facts = {"slot": slot.id, "group": slot.instance_id, "missing": slot.missing}
        self._journal.add("has a slot", start=slot.start, newest=slot.newest, **facts)
        try:
            for n in range(setting.SIZE - slot.missing, setting.SIZE):
                await self._sample(slot, f"{slot.instance_id}-{n}-{slot.fence}")
        except SettingError:
            raise  # our own mistake
        except (PenstockError, Refused, *FILE_ERRORS) as error:
            self._journal.add(
                "gives back", slot=slot.id, error=type(error).__name__, said=str(error)
            )
            with contextlib.suppress(PenstockError):  # else its lease ends it
                await slot.end(back=True)
        else:
            self._journal.add("made", slot=slot.id)
            await slot.end()

    async def _sample(self, slot: Slot, uid: str) -> None:
        share, cost = self._chance.choice(["train", "eval"]), self._chance.choice([1, 1, 2])
        permit = await self._gate.acquire(cost=cost, share=share, timeout=60)
        self._journal.add("has a permit", fence=permit.fence, cost=cost)
        permit.on_lost = lambda: self._journal.add("lost a permit", fence=permit.fence)
        try:
            opened = await self._ask(
                f"/tasks/{setting.TASK}/sessions", f"{uid}/open",
                {"uid": uid, "instance_id": slot.instance_id, "round_number": slot.round,
                 "slot": {"id": slot.id, "fence": slot.fence}},
            )  # fmt: skip
            session = opened["session"]
            self._journal.add("has a session", session=session, uid=uid)
            await self._talk(session, opened["key"], uid)
            permit.check()
            if self._chance.random() < 0.05:
                permit.throttled()
        finally:
            self._journal.add("returns a permit", fence=permit.fence)
            permit.release()
        run = await programs.submit(self._queue, self._journal, uid)
        extra = {"job": uid, **({"run": run} if run else {})}
        self._journal.add("finalizes", session=session, uid=uid)
        said = await self._ask(
            f"/tasks/{setting.TASK}/sessions/{session}/finalize", f"{uid}/end",
            {"reward": self._chance.random(), "extra": extra},
        )  # fmt: skip
        self._journal.add("finalized", uid=uid, outcome=said["outcome"])

    async def _talk(self, session: str, key: str, uid: str) -> None:
        """An agent's turns; its tool's calls add lines to a file of its sandbox."""
        chat: list[dict[str, Any]] = [{"role": "user", "content": f"task {self._chance.random()}"}]
        async with self._sandboxes.open() as sandbox:
            self._journal.add("has a sandbox", name=sandbox.name, uid=uid)
            try:
                lines = 0
                for turn in range(TURNS):
                    self._journal.add("asks", session=session, turn=turn)
                    body = {"model": "m", "messages": chat, "tools": TOOLS, "stream": False}
                    said = await self._ask("/v1/chat/completions", f"{uid}/{turn}", body, key)
                    self._journal.add("has an answer", session=session, turn=turn, id=said["id"])
                    message = said["choices"][0]["message"]
                    chat.append(message)
                    for call in message.get("tool_calls") or []:
                        lines += 1
                        told = await self._tool(sandbox, uid, lines)
                        chat.append({"role": "tool", "tool_call_id": call["id"], "content": told})
                    if chat[-1] is message:
                        chat.append({"role": "user", "content": "go on"})
            finally:
                self._journal.add("leaves a sandbox", name=sandbox.name)

    async def _tool(self, sandbox: Any, uid: str, lines: int) -> str:
        """A sandbox keeps what earlier calls wrote in it, or says that it is lost."""
        command = f"echo '{uid}' >> log; grep -cxF '{uid}' log; grep -cvxF '{uid}' log"
        done = await sandbox.exec(["sh", "-c", command], timeout=60)
        found = done.stdout.decode().split()
        if done.exit_code not in (0, 1) or found != [str(lines), "0"]:
            self._journal.add("wrong sandbox", name=sandbox.name, found=found, lines=lines)
        return f"{lines} lines"

    async def _ask(
        self, path: str, name: str, body: dict[str, Any], key: str = ""
    ) -> dict[str, Any]:
        """As an SDK asks, but with another gateway at each retry."""
        headers = {"content-type": "application/json", "idempotency-key": name}
        if key:
            headers["authorization"] = f"Bearer {key}"
        for retry in itertools.count():
            headers["x-stainless-retry-count"] = str(retry)
            url = self._chance.choice(self._run.gateways) + path
            with contextlib.suppress(httpx.TransportError):
                answer = await self._http.post(url, content=json.dumps(body), headers=headers)
                if answer.status_code == 200:
                    return dict(answer.json())
                if answer.status_code in (404, 409, 410):
                    raise Refused(f"{answer.status_code}: {answer.text[:200]}")
                if answer.status_code not in (429, 500, 502, 503):
                    raise AssertionError(f"{path}: {answer.status_code} {answer.text[:500]}")
            await asyncio.sleep(0.1)
        raise AssertionError


if __name__ == "__main__":
    asyncio.run(Generator(Path(sys.argv[1]), sys.argv[2]).work())
