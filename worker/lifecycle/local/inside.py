"""Runs in the jail, as the first cell of its session: commands and files, for the keeper.

The text of this file is sent; nothing here imports Penstock.
"""

import base64
import json
import os
import signal
import subprocess
import sys

PENSTOCK_MOST = 8 << 20  # bytes of each stream that are told
PENSTOCK_LARGEST = 32 << 20  # of a file that is read in one piece


def penstock_exec(order: str) -> None:
    """Run one command to its end, or its time limit; tell how it ended."""
    asked = json.loads(order)
    process = subprocess.Popen(  # noqa: S603
        asked["argv"],
        cwd=asked["cwd"] or None,
        env={**os.environ, **asked["env"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    timed_out = False
    try:
        out, err = process.communicate(base64.b64decode(asked["stdin"]), asked["timeout"])
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
    out, err = out[:PENSTOCK_MOST], err[:PENSTOCK_MOST]  # more than that nobody reads
    penstock_say(
        exit_code=None if timed_out else process.returncode,
        stdout=base64.b64encode(out).decode(),
        stderr=base64.b64encode(err).decode(),
        timed_out=timed_out,
    )


def penstock_write(order: str) -> None:
    asked = json.loads(order)
    os.makedirs(os.path.dirname(os.path.abspath(asked["path"])), exist_ok=True)
    with open(asked["path"], "wb") as file:
        file.write(base64.b64decode(asked["content"]))
    penstock_say(written=True)


def penstock_read(order: str) -> None:
    try:
        path = json.loads(order)["path"]
        if os.path.getsize(path) > PENSTOCK_LARGEST:
            raise ValueError(f"{path} is larger than {PENSTOCK_LARGEST:,} bytes: read it in parts")
        with open(path, "rb") as file:
            penstock_say(content=base64.b64encode(file.read()).decode())
    except OSError as problem:
        penstock_say(missing=str(problem))


def penstock_say(**answer: object) -> None:
    sys.stdout.write(json.dumps(answer))
