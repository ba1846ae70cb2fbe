"""A provider in memory, in a thread or process of its own, that fails as it is told to.

It counts for itself what is starting: from the moment it is asked for a sandbox until that
one is ready by its own clock, or dead. What its clients believe plays no part.
"""

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.harness.accepting import stop_accepting
from worker.lifecycle import Command, ExecResult, Kind, SandboxRef, SandboxSpec, Verdict


@dataclass
class Sandboxed:
    """One sandbox, as the cloud has it."""

    id: str
    name: str
    tags: dict[str, str]
    folder: Path
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class Refused(Exception):
    def __init__(self, kind: str, message: str, nothing_made: bool = False) -> None:
        super().__init__(message)
        self.kind, self.nothing_made = kind, nothing_made


class Cloud:
    """`faults`: what goes wrong. Chances are from 0 to 1; lists are used up from the front."""

    def __init__(self, address: str, **faults: Any) -> None:
        self.address = address
        self.faults: dict[str, Any] = {
            "latency": [0.0, 0.0],  # of a cold start, at random between these
            "create_fails": 0.0,  # refused, and nothing made
            "reply_lost": 0.0,  # made, but the answer is an error
            "together": 1,  # none is ready before so many were starting at once
            "create_hangs": 0.0,  # made, and never answered
            "never_ready": 0.0,
            "create": [],  # what becomes of the next ones: ok, fail, lost, hang, never, image
            "terminate": [],  # ok, fail, hang, missing (still alive, but nobody says so)
            "dying": 0.0,  # seconds that an end takes
            "down": False,
            "stale": [],  # names that a listing shows though they are dead
            "hidden": [],  # names that neither listing nor finding shows though they live
        } | faults
        self.live: dict[str, Sandboxed] = {}
        self.counts: Counter[str] = Counter()
        self.starting = 0
        self._root = Path(tempfile.mkdtemp(prefix="cloud-"))
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._unheard: set[asyncio.StreamWriter] = set()

    async def serve(self, started: Any) -> None:
        self._closing = asyncio.Event()
        server = await asyncio.start_unix_server(self._accept, self.address, backlog=4096)
        started()
        await self._closing.wait()
        await stop_accepting(server)
        for line in self._unheard:
            line.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task that is cancelled before it began would not hang up."""
        if self._closing.is_set():
            writer.close()
            return
        self._unheard.add(writer)
        hearing = asyncio.ensure_future(self._hear(reader, writer))
        self._tasks.add(hearing)
        hearing.add_done_callback(self._tasks.discard)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unheard.discard(writer)
        try:
            asked = json.loads(await reader.readline())
            # What was asked for is done, whether the one who asked lives or not.
            answer = asyncio.ensure_future(self._answer(asked))
            self._tasks.add(answer)
            answer.add_done_callback(self._tasks.discard)
            said = await asyncio.shield(answer)
            writer.write(json.dumps(said).encode() + b"\n")
            await writer.drain()
        except (ConnectionError, ValueError):
            return  # it was killed
        finally:
            writer.close()

    async def _answer(self, asked: dict[str, Any]) -> Any:
        try:
            if self.faults["down"] and asked["op"] not in ("set", "stats", "stop"):
                raise Refused("retry", "503: down")
            return {"ok": await getattr(self, "do_" + asked.pop("op"))(**asked)}
        except Refused as refusal:
            said = {"kind": refusal.kind, "message": str(refusal)}
            return said | {"nothing_made": refusal.nothing_made}

    async def do_set(self, **faults: Any) -> None:
        self.faults |= faults

    async def do_stats(self) -> dict[str, Any]:
        names = {box.id: box.name for box in self.live.values()}
        return dict(self.counts) | {"live": len(self.live), "names": names}

    async def do_stop(self) -> None:
        self._closing.set()

    def _fate(self) -> str:
        if self.faults["create"]:
            return str(self.faults["create"].pop(0))
        draw = random.random()
        for fault, fate in (
            ("create_fails", "fail"),
            ("reply_lost", "lost"),
            ("create_hangs", "hang"),
            ("never_ready", "never"),
        ):
            draw -= self.faults[fault]
            if draw < 0:
                return fate
        return "ok"

    async def do_create(self, name: str, tags: dict[str, str], image: str, ttl: float) -> Any:
        self.counts["creates"] += 1
        if image == "absent":
            raise Refused("fatal", "image 'absent' does not exist", nothing_made=True)
        if any(box.name == name for box in self.live.values()):
            raise Refused("exists", f"{name} exists")
        fate = self._fate()
        self.starting += 1
        self.counts["peak"] = max(self.counts["peak"], self.starting)
        if fate == "fail":
            await asyncio.sleep(random.uniform(*self.faults["latency"]) / 2)
            self.starting -= 1
            raise Refused("retry", "no capacity", nothing_made=True)
        self._numbers += 1
        folder = self._root / str(self._numbers)
        folder.mkdir()
        box = Sandboxed(f"sb-{self._numbers}", name, tags, folder)
        self.live[box.id] = box
        life = asyncio.ensure_future(self._live(box, fate, ttl))
        self._tasks.add(life)
        life.add_done_callback(self._tasks.discard)
        if fate == "hang":
            await box.over.wait()
        await asyncio.sleep(random.uniform(*self.faults["latency"]) / 2)
        if fate == "lost":
            raise Refused("retry", "the connection was lost")
        return {"id": box.id, "name": name}

    async def _live(self, box: Sandboxed, fate: str, ttl: float) -> None:
        """Starting until it is ready; then until it is ended."""
        if fate != "never":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(*self.faults["latency"])):
                    await box.over.wait()
            while self._too_few() and not box.over.is_set():  # noqa: ASYNC110 - two may end it
                await asyncio.sleep(0.01)
            if not box.over.is_set():
                self.starting -= 1
                box.ready.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ttl):
                await box.over.wait()
        if not box.ready.is_set():
            self.starting -= 1
        self.live.pop(box.id, None)
        shutil.rmtree(box.folder, ignore_errors=True)
        box.gone.set()

    def _too_few(self) -> bool:
        return bool(self.counts["peak"] < self.faults["together"])

    async def do_wait_ready(self, id: str) -> None:
        box = self._box(id)
        waits = [asyncio.ensure_future(event.wait()) for event in (box.ready, box.over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if box.over.is_set():
            raise Refused("gone", f"{id} died as it started")

    async def do_terminate(self, id: str) -> None:
        self.counts["terminates"] += 1
        how = self.faults["terminate"].pop(0) if self.faults["terminate"] else "ok"
        if how == "hang":
            await asyncio.Event().wait()
        if how == "fail":
            raise Refused("retry", "500: cannot terminate")
        box = self.live.get(id)
        if box is None or how == "missing":
            return  # not found is success
        await asyncio.sleep(self.faults["dying"])
        box.over.set()
        await box.gone.wait()

    async def do_find(self, name: str) -> Any:
        for box in self.live.values():
            if box.name == name and name not in self.faults["hidden"]:
                return {"id": box.id, "name": name}
        return None

    async def do_list(self, tags: dict[str, str]) -> Any:
        living = [
            {"id": box.id, "name": box.name}
            for box in self.live.values()
            if tags.items() <= box.tags.items() and box.name not in self.faults["hidden"]
        ]
        return living + [{"id": "sb-dead", "name": name} for name in self.faults["stale"]]

    async def do_alive(self, id: str) -> bool:
        return id in self.live

    async def do_folder(self, id: str) -> str:
        return str(self._box(id).folder)

    def _box(self, id: str) -> Sandboxed:
        if id not in self.live:
            raise Refused("gone", f"{id} is not there")
        return self.live[id]


class CloudError(Exception):
    def __init__(self, kind: str, message: str, nothing_made: bool) -> None:
        super().__init__(message)
        self.kind, self.nothing_made = kind, nothing_made


class CloudProvider:
    """The client's side. `name` is how a reaper makes another one: the address is in it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.runtime_fails: BaseException | None = None
        self.closed_runtimes = 0

    @property
    def name(self) -> str:
        return "tests.worker.lifecycle.cloud.provider_of_environment"

    @property
    def scope(self) -> str:
        return self.name

    async def ask(self, op: str, **more: Any) -> Any:
        reader, writer = await asyncio.open_unix_connection(self.address, limit=1 << 24)
        try:
            writer.write(json.dumps({"op": op, **more}).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise ConnectionError("the cloud hung up")
        said = json.loads(line)
        if "kind" in said:
            raise CloudError(said["kind"], said["message"], said["nothing_made"])
        return said["ok"]

    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        made = await self.ask("create", name=name, tags=dict(tags), image=spec.image, ttl=ttl)
        return SandboxRef(**made)

    async def wait_ready(self, ref: SandboxRef, timeout: float) -> None:  # noqa: ASYNC109
        async with asyncio.timeout(timeout):
            await self.ask("wait_ready", id=ref.id)

    async def open_runtime(self, ref: SandboxRef, timeout: float) -> SandboxRef:  # noqa: ASYNC109
        return ref

    async def close_runtime(self, ref: SandboxRef) -> None:
        self.closed_runtimes += 1
        if self.runtime_fails is not None:
            raise self.runtime_fails

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        folder = Path(await self.ask("folder", id=ref.id))
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(command.stdin)
            given.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command.argv, cwd=folder / command.cwd,
                    env={"PATH": "/usr/bin:/bin", **command.env},
                    stdin=given, stdout=out, stderr=err,
                )  # fmt: skip
            except OSError as problem:
                code = 127 if isinstance(problem, FileNotFoundError) else 126
                return ExecResult(code, b"", str(problem).encode())
            timed_out = False
            try:
                async with asyncio.timeout(command.timeout):
                    await process.wait()
            except TimeoutError:
                timed_out = True
            finally:  # also if its caller has been cancelled
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            for file in (out, err):
                file.seek(0)
            code = None if timed_out else process.returncode
            return ExecResult(code, out.read(), err.read(), timed_out)

    async def read_file(self, ref: SandboxRef, path: str) -> bytes:
        return (Path(await self.ask("folder", id=ref.id)) / path).read_bytes()

    async def write_file(self, ref: SandboxRef, path: str, content: bytes) -> None:
        file = Path(await self.ask("folder", id=ref.id)) / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as problem:
            raise NotADirectoryError(str(problem)) from None
        file.write_bytes(content)

    async def is_alive(self, ref: SandboxRef) -> bool:
        try:
            return bool(await self.ask("alive", id=ref.id))
        except (OSError, CloudError):
            return False

    async def terminate(self, id: str) -> None:
        await self.ask("terminate", id=id)

    async def find(self, name: str) -> SandboxRef | None:
        found = await self.ask("find", name=name)
        return SandboxRef(**found) if found else None

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        for each in await self.ask("list", tags=dict(tags)):
            yield SandboxRef(**each)

    def classify(self, problem: BaseException) -> Verdict:
        if isinstance(problem, CloudError):
            return Verdict(Kind(problem.kind), nothing_made=problem.nothing_made)
        return Verdict(Kind.RETRY)

    async def close(self) -> None: ...


def provider_of_environment() -> CloudProvider:
    """What a record's provider name stands for, in tests and the processes they start."""
    return CloudProvider(os.environ["TEST_CLOUD"])


class CloudThread:
    """`with CloudThread(folder) as cloud: cloud.provider, cloud.set(down=True), cloud.stats()`"""

    def __init__(self, folder: Path, **faults: Any) -> None:
        self.address = str(folder / "cloud.sock")
        self.cloud = Cloud(self.address, **faults)
        self.provider = CloudProvider(self.address)

    def ask(self, op: str, **more: Any) -> Any:
        return ask(self.address, op, **more)

    def set(self, **faults: Any) -> None:
        self.ask("set", **faults)

    def stats(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("stats")
        return found

    @property
    def live(self) -> int:
        return int(self.stats()["live"])

    def __enter__(self) -> Self:
        started = threading.Event()
        work = self.cloud.serve(started.set)
        self._thread = threading.Thread(target=lambda: asyncio.run(work), daemon=True)
        self._thread.start()
        assert started.wait(100)
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("stop")
        self._thread.join()


def ask(address: str, op: str, **more: Any) -> Any:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address)
        line.sendall(json.dumps({"op": op, **more}).encode() + b"\n")
        with line.makefile("rb") as answers:
            return json.loads(answers.readline())["ok"]
