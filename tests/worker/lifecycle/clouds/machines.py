"""What stand-ins of clouds have in common: sandboxes are folders of this machine, over HTTP."""

import json
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from tests.harness.background import answering


@dataclass
class Machine:
    name: str
    labels: dict[str, str]
    env: dict[str, str]
    ends: float
    folder: Path
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


class Taken(Exception):
    """A living machine has the name."""


class Machines:
    """Those of one cloud. It counts for itself; what its clients believe plays no part."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._all: dict[str, Machine] = {}
        self.refuse: list[tuple[int, dict[str, str], Any]] = []  # the next creations, so answered
        self.delay = 0.0  # seconds from a creation to its answer
        self.creations = 0

    def make(self, name: str, labels: Mapping[str, str], env: Any, ttl: float) -> Machine:
        with self._lock:
            if any(each.name == name for each in self.living()):
                raise Taken(name)
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            made = Machine(name, dict(labels), dict(env or {}), time.time() + ttl, folder)
            self._all[made.id] = made
        return made

    def living(self) -> list[Machine]:
        now = time.time()
        for each in [each for each in self._all.copy().values() if each.ends < now]:
            self.end(each)
        return list(self._all.copy().values())

    def find(self, id_or_name: str) -> Machine | None:
        found = (each for each in self.living() if id_or_name in (each.id, each.name))
        return next(found, None)

    def end(self, machine: Machine) -> None:
        self._all.pop(machine.id, None)
        shutil.rmtree(machine.folder, ignore_errors=True)


def run(machine: Machine, words: list[str], timeout: float) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen(
        words, cwd=machine.folder, env={"PATH": "/usr/bin:/bin", **machine.env},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


class Handler(BaseHTTPRequestHandler):
    """`routes` of a cloud's own handler answer; this reads and writes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    machines: ClassVar[Machines]

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError, json.JSONDecodeError):  # its client was killed
            self.close_connection = True

    def do_any(self) -> None:
        self.route(self.command, self.path, self.body())

    do_GET = do_POST = do_DELETE = do_PATCH = do_any

    def route(self, method: str, path: str, body: bytes) -> None:
        raise NotImplementedError

    def refused(self) -> bool:
        """Of a creation: whether it is refused, and so answered."""
        self.machines.creations += 1
        if not self.machines.refuse:
            return False
        status, headers, said = self.machines.refuse.pop(0)
        self.answer(status, said, headers)
        return True

    def body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        found = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return bytes(found)

    def answer(self, status: int, said: Any = None, headers: Mapping[str, str] = {}) -> None:
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        for name, text in {"content-type": "application/json", **headers}.items():
            self.send_header(name, text)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    request_queue_size = 1024


@contextmanager
def serving(kind: type[Handler], folder: Path) -> Iterator[tuple[Machines, str]]:
    """A cloud's stand-in on a port of this machine: its machines, and its address."""
    machines = Machines(folder)
    server = Server(("127.0.0.1", 0), type(kind.__name__, (kind,), {"machines": machines}))
    with answering(server):
        yield machines, f"http://127.0.0.1:{server.server_address[1]}"


def parts(body: bytes, content_type: str) -> dict[str, bytes]:
    """A form's fields, by their names."""
    boundary = content_type.split("boundary=")[1].strip('"').encode()
    found = {}
    for part in body.split(b"--" + boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        name = head.split(b' name="')[1].split(b'"')[0].decode()
        found[name] = content[:-2]
    return found
