"""Runs in a session's sandbox: one interpreter for all its Python programs, as a notebook has.

    python3 -c LOADER SOURCE FILE      hand FILE to the interpreter, and exit as the program does

A program gets its caller's stdin, stdout and stderr, and what earlier programs left in
`__main__`. A caller that is killed, because time is up, interrupts its program; one that
does not let itself be interrupted takes the interpreter with it. The text of this file is
sent; nothing here imports Penstock.
"""

import contextlib
import fcntl
import linecache
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types

LOADER = "import sys; exec(sys.argv[1])"
DOOR, LOCK = ".penstock-interpreter", ".penstock-interpreter.lock"
GRACE = 3.0  # seconds that an interrupted program has to end
INTERRUPTIONS = 10

running = False


def ask(source: str, file: str) -> int:
    """The caller's side: the program's exit code."""
    said = b""
    with connected(source) as line, contextlib.suppress(ConnectionError):
        message = f"{os.path.abspath(file)}\0{file}".encode()
        socket.send_fds(line, [message], [0, 1, 2])
        said = line.recv(16)
    if said:
        return int(said)
    sys.stderr.write("[the interpreter has died of this program]\n")
    return 1


def connected(source: str) -> socket.socket:
    """To the interpreter, which is started where there is none."""
    line = socket.socket(socket.AF_UNIX)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            line.connect(DOOR)
        except (FileNotFoundError, ConnectionRefusedError):
            start(source)
            line.connect(DOOR)
    return line


def start(source: str) -> None:
    if os.path.exists(DOOR):
        sys.stderr.write("[a new interpreter: the variables of earlier programs are gone]\n")
        os.unlink(DOOR)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(DOOR)
        door.listen(64)
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", LOADER, source, "--serve", str(door.fileno())],
            pass_fds=[door.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def serve(door: socket.socket) -> None:
    """The interpreter: one program after the other, for as long as the sandbox lives."""
    signal.signal(signal.SIGINT, interrupt)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[0] = os.getcwd()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    while True:
        line, _ = door.accept()
        with line, contextlib.suppress(OSError):
            message, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
            if len(streams) < 3:
                continue  # killed before it had asked
            give(streams)
            path, _, name = message.decode().partition("\0")
            code = 1 if gone(line) else watched(line, path, name, main)
            flush()
            give([os.open(os.devnull, os.O_RDWR) for _ in range(3)])
            line.sendall(str(code).encode())


def give(streams: list[int]) -> None:
    """These become stdin, stdout and stderr, whatever a program made of its own."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, f"__{name}__").closed:
            standard = open(number, "w", buffering=1, closefd=False)  # noqa: SIM115
            setattr(sys, f"__{name}__", standard)
        setattr(sys, name, getattr(sys, f"__{name}__"))


def flush() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
                stream.flush()


def gone(line: socket.socket) -> bool:
    """Whether the caller has been killed while it waited for its turn."""
    try:
        return not line.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def watched(line: socket.socket, path: str, name: str, main: types.ModuleType) -> int:
    """Run the program for as long as its caller waits for it."""
    over = threading.Event()

    def watch() -> None:
        line.recv(1)  # returns when the caller is gone, or as it is shut down below
        if over.is_set():
            return
        for _ in range(INTERRUPTIONS):  # a program may catch one
            os.kill(os.getpid(), signal.SIGINT)
            if over.wait(GRACE / INTERRUPTIONS):
                return
        os._exit(1)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        return run(path, name, main)
    finally:
        over.set()
        line.shutdown(socket.SHUT_RD)
        watcher.join()


def run(path: str, name: str, main: types.ModuleType) -> int:
    global running
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        program = compile(text, name, "exec")
        running = True
        exec(program, main.__dict__)  # noqa: S102 - this is what the sandbox is for
    except SystemExit as end:
        running = False
        return code_of(end.code)
    except BaseException as failure:  # noqa: BLE001 - any error here is the program's own
        running = False
        tell(failure)
        return 1
    finally:
        running = False
    return 0


def tell(failure: BaseException) -> None:
    """Its traceback, without the frames of Penstock."""
    inside = failure.__traceback__ and failure.__traceback__.tb_next
    shown = traceback.TracebackException(type(failure), failure, inside)
    own = ("<string>", interrupt.__name__)
    shown.stack[:] = [frame for frame in shown.stack if (frame.filename, frame.name) != own]
    sys.stderr.writelines(shown.format())


def code_of(given: object) -> int:
    """As Python itself ends with it."""
    if given is None or isinstance(given, int):
        return (given or 0) & 255
    print(given, file=sys.stderr)
    return 1


def interrupt(*_: object) -> None:
    if running:
        raise KeyboardInterrupt


if __name__ == "__main__":
    if sys.argv[2] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[3])))
    else:
        sys.exit(ask(sys.argv[1], sys.argv[2]))
