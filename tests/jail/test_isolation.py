"""A program meets nobody: not another program, not its supervisor, not its own results."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from jail.jails import Jails
from jail.outcome import Program

from .conftest import QUICK, STARTS, Run, config_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERVE = """
import os, socket, time
server = socket.create_server(("127.0.0.1", 5000))
abstract = socket.socket(socket.AF_UNIX); abstract.bind("\\0meeting"); abstract.listen()
for folder in ("/tmp", "/home/sandbox", "/dev/shm", "/mnt", "/var/tmp"):
    open(folder + "/left", "w").write("here")
connection = socket.create_connection(("127.0.0.1", 5000))
time.sleep(0.5)
print(sorted(pid for pid in os.listdir("/proc") if pid.isdigit()), os.getppid())
"""
LOOK = """
import os, socket, time

time.sleep(0.2)
print([f for f in ("/tmp", "/home/sandbox", "/dev/shm", "/mnt", "/var/tmp")
       if os.path.exists(f + "/left")])
for address, family in ((("127.0.0.1", 5000), 2), ("\\0meeting", 1)):
    try:
        socket.socket(family).connect(address)
        print("met")
    except OSError as problem:
        print(problem.strerror)
"""


async def test_two_programs_at_once_do_not_meet(run: Run) -> None:
    """Both serve on the same port, too."""
    first, second, looks = await asyncio.gather(run(SERVE), run(SERVE), run(LOOK))
    assert first.stdout == second.stdout == b"['1', '2'] 1\n"
    assert looks.stdout == b"[]\nConnection refused\nConnection refused\n"


async def test_nothing_is_left_for_the_next(run: Run) -> None:
    await run(SERVE)
    assert (await run(LOOK)).stdout == b"[]\nConnection refused\nConnection refused\n"


async def test_its_environment_is_what_the_request_gives(run: Run) -> None:
    os.environ["PENSTOCK_TEST_SECRET"] = "s3cret"
    try:
        outcome = await run("import os; print(sorted(os.environ.items()))", env={"GIVEN": "1"})
    finally:
        del os.environ["PENSTOCK_TEST_SECRET"]
    names = [name for name, _ in eval(outcome.stdout)]
    assert names == ["GIVEN", "HOME", "LANG", "PATH"]


async def test_random_numbers_are_not_shared_between_programs(run: Run) -> None:
    code = "import random, uuid, os, tempfile; print(random.random(), uuid.uuid4())"
    first, second = await run(code), await run(code)
    assert first.stdout.split()[0] != second.stdout.split()[0]
    assert first.stdout.split()[1] != second.stdout.split()[1]


FIND_MARKS = """
import re
mark = re.compile(b"MARK" + b":[0-9a-f]{32}")
found = 0
for line in open("/proc/self/maps"):
    span, rights, *rest = line.split()
    if "r" in rights and rest[-1] not in ("[vvar]", "[vvar_vclock]", "[vsyscall]"):
        start, end = (int(x, 16) for x in span.split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            found += bool(mark.search(memory.read(end - start)))
print(found > 0)
"""


async def test_no_earlier_program_is_found_in_memory(run: Run) -> None:
    marked = f"mine = 'MARK:{os.urandom(16).hex()}'\n"
    await run(marked + "print(mine)", stdin=marked.encode(), files={"f": marked.encode()})
    assert (await run(FIND_MARKS)).stdout == b"False\n"
    assert (await run(marked + FIND_MARKS)).stdout == b"True\n"


async def test_a_program_without_descriptors_is_still_judged(run: Run) -> None:
    outcome = await run("import os; os.closerange(0, 4096); os._exit(9)")
    assert (outcome.status, outcome.return_code) == ("finished", 9)


async def test_killing_its_init_does_nothing(run: Run) -> None:
    code = """
import os, signal
for number in signal.Signals:
    try: os.kill(1, number)
    except OSError: pass
try: os.kill(-1, signal.SIGKILL)
except OSError: pass
print("alive")
"""
    assert (await run(code)).stdout == b"alive\n"


async def test_no_frame_above_it_holds_anything_of_ours(run: Run) -> None:
    code = """
import sys, gc
frame, names = sys._getframe(), set()
while frame := frame.f_back:
    names |= set(frame.f_locals)
print([m for m in sys.modules if m.startswith("inside")])
print([t for o in gc.get_objects() if isinstance(o, dict) and "complaint" in o for t in o][:1])
"""
    assert (await run(code)).stdout.splitlines()[0] == b"[]"


async def test_a_bomb_leaves_the_next_program_its_own_processes(run: Run) -> None:
    """The kernel counts them by user; each program is another."""
    assert (await run("import os\nwhile True: os.fork()")).status == "process_limit"
    code = """
import os, time
for _ in range(50):
    if os.fork() == 0: time.sleep(0.2); os._exit(0)
for _ in range(50): os.wait()
"""
    assert (await run(code)).return_code == 0


async def test_it_may_serve_itself_on_localhost(run: Run) -> None:
    code = """
import http.server, threading, urllib.request
server = http.server.HTTPServer(("localhost", 8000), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for host in ("localhost", "127.0.0.1"):
    print(urllib.request.urlopen(f"http://{host}:8000/main.py").status)
"""
    assert (await run(code)).stdout == b"200\n200\n"


@pytest.mark.parametrize("start", STARTS)
async def test_64_honest_programs_beside_bombs_all_finish_right(start: str) -> None:
    """All at once: none waits for another's place."""
    async with Jails(config_for(start), concurrency=67, use_cgroups=start == "root") as jails:
        await finish_right_beside_bombs(jails)


async def finish_right_beside_bombs(sandbox: Jails) -> None:
    limits = replace(QUICK, wall=60.0)
    forks = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    bombs = [
        "x = []\nwhile True: x.append(bytearray(1 << 20))",
        "import os\nwhile True: os.write(1, bytes(65536)); os.write(2, bytes(65536))",
    ]
    honest = [f"print(sum(range({n})) * {n})" for n in range(64)]
    outcomes = await asyncio.gather(
        sandbox.run(Program(forks, limits=replace(limits, memory=1 << 30))),
        *(sandbox.run(Program(code, limits=limits)) for code in [*bombs, *honest]),
    )
    assert [o.status for o in outcomes[:3]] == ["process_limit", "memory_limit", "output_limit"]
    assert [o.stdout for o in outcomes[3:]] == [
        f"{sum(range(n)) * n}\n".encode() for n in range(64)
    ]


async def test_a_cancelled_run_ends_its_program(sandbox: Jails) -> None:
    server = await sandbox._live_server()
    before = server.posted
    running = asyncio.ensure_future(sandbox.run(Program("import time; time.sleep(600)")))
    while server.posted == before:  # noqa: ASYNC110  there is nothing to await on
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    pid = server.ready["pid"]
    async with asyncio.timeout(100):
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while len(children.read_text().split()) > sandbox.config.spares:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
