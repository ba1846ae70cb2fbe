"""A Sandbox Fusion server that answers by script, and counts exactly what it was made to run.

The independent observer of the chaos tests: it shares no code with Penstock.

    with ScriptedFusion(Answer.busy(retry_after=1), Answer.ok("1\\n")) as fusion:
        ...                                    # fusion.url
        assert fusion.executions["job-7"] == 1
        assert fusion.peak <= limit

Answers are used up in order; after the last one every program gets `default`,
unless `programs` knows its code. An execution begins when the request has been
read whole and ends when its time is over, whether or not anybody still waits,
as in a real sandbox. As a process of its own:

    python -m tests.worker.scripted_fusion [--port N] [--seconds S]     prints its URL
    GET /stats   POST /script [{"status": 503}, ...]   POST /default {...}   POST /reset
"""

import argparse
import asyncio
import json
import math
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Self

from tests.harness.accepting import stop_accepting
from tests.worker.scripted_answers import Answer


class ScriptedFusion:
    """The server, on loopback, in a thread of its own. Its counters may be read at any time."""

    def __init__(
        self,
        *answers: Answer,
        default: Answer | None = None,
        programs: dict[str, Answer] | None = None,
        port: int = 0,
    ) -> None:
        self.script = deque(answers)
        self.default = default or Answer.ok("ok\n")
        self.programs = dict(programs or {})
        self.reset()
        self._port = port
        self._changed = threading.Condition()
        self._held: deque[tuple[Answer, _Connection]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[_Connection] = set()

    def reset(self) -> None:
        self.executions: Counter[str] = Counter()  # by X-Correlation-ID, else by code
        self.codes: Counter[str] = Counter()
        self.bodies: deque[dict[str, Any]] = deque(maxlen=1000)
        self.headers: deque[dict[str, str]] = deque(maxlen=1000)
        self.requests = self.connections = self.in_flight = self.peak = self.finished = 0

    def stats(self) -> dict[str, Any]:
        numbers = ("requests", "connections", "in_flight", "peak", "finished")
        counted = {"executions": dict(self.executions), "codes": dict(self.codes)}
        return counted | {name: getattr(self, name) for name in numbers}

    @property
    def open_connections(self) -> int:
        return len(self._open)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), "127.0.0.1", self._port, backlog=4096
        )
        self._port = self._server.sockets[0].getsockname()[1]

    def wait_until(self, said: Callable[[], bool], timeout: float = 100.0) -> None:
        """Block until a condition over the counters holds; it is asked after each change."""
        with self._changed:
            assert self._changed.wait_for(said, timeout), self.stats()

    def stop_listening(self) -> None:
        """Refuse connections from now on, and cut those that are open."""
        asyncio.run_coroutine_threadsafe(self._cut_off(), self._loop).result()

    def listen_again(self) -> None:
        asyncio.run_coroutine_threadsafe(self.serve(), self._loop).result()

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._cut_off(), self._loop).result()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await self.serve()
            ready.set()
            await self._stop.wait()

        asyncio.run(main())

    def finish_held(self) -> None:
        """End the programs that run for `math.inf` seconds, all that began so far."""
        self._call(lambda: [self._end(*self._held.popleft()) for _ in range(len(self._held))])

    def _call(self, function: Any) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(), done.set()))
        done.wait()

    async def _cut_off(self) -> None:
        await stop_accepting(self._server)
        for connection in list(self._open):
            connection.transport.abort()

    def _choose(self, code: str) -> Answer:
        if code in self.programs:
            return self.programs[code]
        return self.script.popleft() if self.script else self.default

    def _accept(self, headers: dict[str, str], body: bytes, connection: "_Connection") -> None:
        """A whole request is here: from now until its time is over it is in flight."""
        self.requests += 1
        request = json.loads(body)
        self.bodies.append(request)
        self.headers.append(headers)
        code = request.get("code", "")
        answer = self._choose(code)
        if answer.executes:
            self.executions[headers.get("x-correlation-id") or code] += 1
            self.codes[code] += 1
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
        self._tell()
        if answer.seconds == math.inf:
            self._held.append((answer, connection))
        elif answer.seconds:
            asyncio.get_running_loop().call_later(answer.seconds, self._end, answer, connection)
        else:
            self._end(answer, connection)

    def _end(self, answer: Answer, connection: "_Connection") -> None:
        if answer.executes:
            self.in_flight -= 1
            self.finished += 1
        self._tell()
        if answer.drip or answer.megabytes:
            task = asyncio.get_running_loop().create_task(connection.stream(answer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            connection.write(answer)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _control(self, target: str, body: bytes) -> Any:
        match target:
            case "/stats":
                return self.stats()
            case "/v1/ping":
                return "pong"
            case "/reset":
                self.reset()
            case "/script":
                self.script.extend(Answer(**given) for given in json.loads(body))
            case "/default":
                self.default = Answer(**json.loads(body))
            case _:
                return None
        return "done"


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with Content-Length, as far as a client of ours speaks it."""

    transport: asyncio.Transport

    def __init__(self, fusion: ScriptedFusion) -> None:
        self.fusion = fusion
        self.buffer = bytearray()
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.fusion.connections += 1
        self.fusion._open.add(self)
        if not self.fusion._server.is_serving():
            transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        self.fusion._open.discard(self)
        self.fusion._tell()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            first, *lines = self.buffer[:end].decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", 0))
            if len(self.buffer) < end + 4 + length:
                return
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self._route(first.split(" ")[1].partition("?")[0], headers, body)

    def _route(self, path: str, headers: dict[str, str], body: bytes) -> None:
        if path.endswith("/run_code"):
            self.fusion._accept(headers, body, self)
            return
        said = self.fusion._control(path, body)
        self.write(Answer.refusal(404) if said is None else Answer(body=said))

    def write(self, answer: Answer) -> None:
        if self.transport.is_closing() or answer.cut_at_once:
            self.transport.abort()
            return
        raw = (json.dumps(answer.body) if answer.text is None else answer.text).encode()
        self.transport.write(_head(answer, len(raw)) + raw[: answer.cut_after])
        if answer.cut_after is not None:
            self.transport.close()

    async def stream(self, answer: Answer) -> None:
        """Byte by byte, or megabyte by megabyte, until the client has gone."""
        raw = json.dumps(answer.body).encode()
        pieces: Iterable[bytes] = (raw[i : i + 1] for i in range(len(raw)))
        if answer.megabytes:
            pieces = (b"x" * (1 << 20) for _ in range(answer.megabytes))
        self.transport.write(_head(answer, answer.megabytes << 20 or len(raw)))
        for piece in pieces:
            self.transport.write(piece)
            await asyncio.sleep(answer.drip)
            await self.writable.wait()
            if self.transport.is_closing():
                return


def _head(answer: Answer, length: int) -> bytes:
    given = {"Content-Type": "application/json", "Content-Length": str(length)} | answer.headers
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {answer.status} Scripted\r\n{lines}\r\n".encode()


def main() -> None:
    options = argparse.ArgumentParser(description="A scripted Sandbox Fusion server.")
    options.add_argument("--port", type=int, default=0)
    options.add_argument("--seconds", type=float, default=0.0, help="how long a program runs")
    given = options.parse_args()
    ended = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: ended.set())
    with ScriptedFusion(default=Answer.ok("ok\n", seconds=given.seconds), port=given.port) as it:
        print(it.url, flush=True)
        while not ended.wait(3600):
            pass


if __name__ == "__main__":
    sys.exit(main())
