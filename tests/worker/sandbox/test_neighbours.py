"""What the kernel counts by user, and so for all programs together: none uses it up for others."""

import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from worker.sandbox.local import Jails, LimitRefused, Program
from worker.sandbox.local.inside import wire, zygote
from worker.sandbox.local.limits import CAPS

from .conftest import QUICK, STARTS, config_for

_NO_CLONE_HAS_IT = 0x800  # CLONE_SIGHAND, without the memory that it needs
# Sends descriptors to itself and never takes them, from many threads at once, until it is told no.
FLOOD = """
import array, socket, threading
kept, said = [], []
def flood():
    try:
        while True:
            kept.append(socket.socketpair())
            many = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))]
            kept[-1][0].sendmsg([b"x"], many)
    except OSError as problem:
        said.append(problem.strerror)
threads = [threading.Thread(target=flood) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"Too many references: cannot splice" in said
"""


@pytest.fixture
def usual_descriptors() -> Iterator[None]:
    """1,024 of them, raised at will: what a shell or a service has at first."""
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, kept[1]), kept[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, kept)


@pytest.mark.usefixtures("usual_descriptors")
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.asyncio
async def test_descriptors_under_way_do_not_keep_others_from_starting(start: str) -> None:
    async with Jails(config_for(start), use_cgroups=False) as jails:
        limits = replace(QUICK, open_files=jails.caps.open_files)
        async with jails.session(limits) as hostile:
            flooded = await hostile.run(FLOOD)
            assert flooded.display == [{"text/plain": "True"}], flooded
            outcomes = [await jails.run(Program("print(1)", limits=QUICK)) for _ in range(5)]
            server = (await jails._live_server()).ready["pid"]
            made = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert [outcome.stdout for outcome in outcomes] == [b"1\n"] * 5, outcomes
    assert len(made) < 10


@pytest.mark.usefixtures("usual_descriptors")
def test_more_open_files_than_leave_room_for_ours_are_refused() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    jails = Jails(caps=replace(CAPS, open_files=1 << 30))
    with pytest.raises(LimitRefused, match="open_files"):
        replace(QUICK, open_files=most).within(jails.caps)


def test_a_client_that_went_away_costs_a_fork_server_with_no_room_nothing() -> None:
    no_room: Any = SimpleNamespace(clone_flags=_NO_CLONE_HAS_IT)
    reader, writer = os.pipe()
    os.close(reader)
    control, other = wire.pair()
    server = zygote.Server(control, no_room, 0, True)
    server._hand_over({"run": 1, "what": "program"}, [writer, writer])
    os.close(writer)
    control.close()
    other.close()
