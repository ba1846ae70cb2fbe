"""How a process's gates end: cleanly, and never later than a frozen Redis allows."""

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from limiter import TokenBucket
from limiter import engine as engines
from tests.limiter.in_flight import settled_sync

WAITED_ONCE = """
import sys, threading
from limiter import TokenBucket
gate = TokenBucket(sys.argv[1], "g", limit=1)
with gate:
    waiter = threading.Thread(target=lambda: gate.sync.acquire().release())
    waiter.start()
    while not gate.sync.status().waiting:
        pass
waiter.join()
print("waited", flush=True)
if "frozen" in sys.argv:
    sys.stdin.readline()
"""


@pytest.fixture
def readers() -> Callable[[], list[threading.Thread]]:
    """Those that the test began: an earlier one's, of a queue, may be on its way out."""
    earlier = set(threading.enumerate())
    return lambda: [
        thread
        for thread in threading.enumerate()
        if thread.name == "penstock-inbox" and thread not in earlier
    ]


def wait_once(gate: TokenBucket) -> None:
    with gate:
        waiter = threading.Thread(target=lambda: gate.sync.acquire().release())
        waiter.start()
        settled_sync(gate, waiting=1)
    waiter.join()


def test_the_reader_of_grants_ends_with_its_engine(redis, readers):
    wait_once(TokenBucket(redis, "g", limit=1))
    assert readers()
    engines.stop_all()
    assert not readers()


def test_the_reader_of_grants_ends_when_redis_is_gone(private_redis, readers):
    server = private_redis(aof=False)
    wait_once(TokenBucket(server.target, "g", limit=1))
    ours = readers()
    server.kill()
    engines.stop_all()
    for reader in ours:
        reader.join(100)
    assert not readers()


def test_a_process_that_has_waited_ends_without_a_word(real_redis, shared_server):
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", WAITED_ONCE, shared_server.url],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "waited\n", "")


def test_a_process_ends_though_redis_is_frozen(private_redis):
    server = private_redis(aof=False)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITED_ONCE, server.url, "frozen"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "waited\n"
        server.freeze()
        _, errors = process.communicate("\n", timeout=100)
    assert (process.returncode, "Exception" in errors) == (0, False)
