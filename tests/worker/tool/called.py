"""What pools are made to call, also in processes of their own."""

import os
import signal
import sys
import time
from typing import Any

import redis

SECONDS = 0.05


def overlapping(url: str, number: int) -> tuple[int, int]:
    """Its number, and how many of its kind ran at once when it did. The first waits for another."""
    client: Any = redis.Redis.from_url(url)
    now = int(client.incr("overlap"))
    if now > 1:
        client.set("met", 1)
    deadline = time.monotonic() + 100
    while not client.exists("met") and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(SECONDS)
    client.decr("overlap")
    client.close()
    return number, now


def rotten_at_ten(number: int) -> int:
    if number == 10:
        raise ValueError("rotten")
    return number


def leaves() -> None:
    sys.exit(3)


def pid() -> int:
    return os.getpid()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def never_ends(url: str) -> None:
    client: Any = redis.Redis.from_url(url)
    client.set("began", os.getpid())
    time.sleep(3600)


def unsendable() -> Any:
    return lambda: None
