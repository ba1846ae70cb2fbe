"""The caller runs in a session's sandbox. It hands one Python program to the interpreter that all
of them share.

    python3 -c CALLER NOTEBOOK FILE      run FILE there, and exit as the program does

`NOTEBOOK` is the text of `jail/inside/notebook.py`, the interpreter, which is
started if it is not there. A program gets its caller's stdin, stdout and stderr. A caller that is
killed, because time is up, interrupts its program. One that does not let itself be interrupted
takes the interpreter with it. The text of this file is sent; nothing here imports Penstock.
"""

import contextlib
import fcntl
import os
import socket
import sys

DOOR, LOCK = ".penstock-interpreter", ".penstock-interpreter.lock"


def ask(notebook: str, file: str) -> int:
    """The program's exit code."""
    said = b""
    with connected(notebook) as line, contextlib.suppress(ConnectionError):
        message = f"{os.path.abspath(file)}\0{file}".encode()
        socket.send_fds(line, [message], [0, 1, 2])
        said = line.recv(16)
    if said:
        return int(said)
    sys.stderr.write("[the interpreter has died of this program]\n")
    return 1


def connected(notebook: str) -> socket.socket:
    """Connect to the interpreter, which is started if there is none."""
    line = socket.socket(socket.AF_UNIX)
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            line.connect(DOOR)
        except (FileNotFoundError, ConnectionRefusedError):
            start(notebook)
            line.connect(DOOR)
    return line


def start(notebook: str) -> None:
    import subprocess

    if os.path.exists(DOOR):
        sys.stderr.write("[a new interpreter: the variables of earlier programs are gone]\n")
        os.unlink(DOOR)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(DOOR)
        door.listen(64)
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", notebook, "--programs", str(door.fileno())],
            pass_fds=[door.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2]))
