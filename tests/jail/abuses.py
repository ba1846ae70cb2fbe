"""Programs that try a limit, and how each must end, at every level that promises it."""

from dataclasses import dataclass, field
from typing import Any

from .conftest import MB
from .hidings import HIDINGS


@dataclass(frozen=True)
class Abuse:
    """`limits` beside those of the fixtures: 256 MB, 64 processes, 100 s."""

    name: str
    code: str
    status: str
    return_code: int | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    stdout: bytes | None = None
    longest: float = 50.0  # seconds, where 60 or 100 would mean that nothing stopped it


ROOMY = {"memory": 1024 * MB}  # so that the limit that many processes pass is their number's

ABUSES = [
    Abuse(
        "a time limit keeps what was printed",
        "import time; print('so far', flush=True); time.sleep(60)",
        "time_limit",
        limits={"wall": 3.0},  # enough to print it on a busy machine
        stdout=b"so far\n",
    ),
    Abuse(
        "ignoring signals and stopping its parent",
        """
import os, signal
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    try: os.setsid()
    except OSError: pass
    os.kill(os.getppid(), signal.SIGSTOP)
while True: pass
""",
        "time_limit",
        limits={"wall": 0.3},
    ),
    Abuse(
        "stopping itself",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "time_limit",
        limits={"wall": 0.3},
    ),
    Abuse(
        "orphans at a time limit",
        """
import os, time
if os.fork() == 0:
    try: os.setsid()
    except OSError: pass
    os.fork()
    if os.fork(): os._exit(0)
time.sleep(60)
""",
        "time_limit",
        limits={"wall": 0.3},
    ),
    Abuse(
        "processor time of a whole tree",
        "import os\nfor _ in range(3): os.fork()\nwhile True: pass",
        "time_limit",
        limits={"cpu": 0.5},
    ),
    Abuse("one large allocation", "x = b'x' * (700 << 20)", "memory_limit"),
    Abuse(
        "memory of a whole tree",
        """
import os, time
for _ in range(6):
    if os.fork() == 0:
        x = bytearray(200 << 20)
        time.sleep(60)
        os._exit(0)
for _ in range(6): os.wait()
""",
        "memory_limit",
        limits={"memory": 400 * MB},
    ),
    Abuse(
        "pages that forks share are counted once",
        """
import os, time
x = bytearray(100 << 20)
for _ in range(40):
    if os.fork() == 0:
        time.sleep(0.3)
        os._exit(0)
for _ in range(40): os.wait()
print("fine")
""",
        "finished",
        0,
        stdout=b"fine\n",
    ),
    Abuse(
        "a flood of output",
        "while True: print('x' * 1000)",
        "output_limit",
        limits={"output": 1 * MB},
    ),
    Abuse("a fork bomb", "import os\nwhile True: os.fork()", "process_limit", limits=ROOMY),
    Abuse(
        "forking on where it is refused",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "process_limit",
        limits=ROOMY,
    ),
    Abuse(
        "as many processes as there may be, waiting",
        """
import os, time
try:
    while os.fork(): pass
except OSError: pass
time.sleep(60)
""",
        "process_limit",
        limits=ROOMY,
    ),
    Abuse(
        "ten thousand threads",
        """
import threading, time
threading.stack_size(65536)
for _ in range(10_000): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
        "process_limit",
    ),
    Abuse(
        "a child left in the background",
        "import subprocess; subprocess.Popen(['sleep', '60']); print('done')",
        "finished",
        0,
        stdout=b"done\n",
    ),
    Abuse(
        "orphans of orphans",
        """
import os, time
if os.fork() == 0:
    for _ in range(20):
        if os.fork(): os._exit(0)
    time.sleep(60)
print("done", flush=True)
""",
        "finished",
        0,
        stdout=b"done\n",
    ),
    Abuse(
        "killing everybody in sight",
        """
import os, signal
for target in (-1, 1, os.getppid()):
    for number in signal.Signals:
        if target != -1 or number == signal.SIGCONT:
            try: os.kill(target, number)
            except OSError: pass
print("alive")
""",
        "finished",
        0,
        stdout=b"alive\n",
    ),
    Abuse(
        "writing to, duplicating and closing every descriptor",
        """
import os
print("true", flush=True)
for at in range(3, 2048):
    try: os.write(at, b'\\0' * 4096)
    except OSError: pass
    try: os.dup2(1, at)
    except OSError: pass
os.closerange(3, 4096)
os._exit(3)
""",
        "finished",
        3,
        stdout=b"true\n",
    ),
    Abuse(
        "a child in an uninterruptible call",
        """
import ctypes
libc = ctypes.PyDLL(None)
if libc.vfork() == 0:
    while True: libc.pause()
""",
        "time_limit",
        limits={"wall": 0.5},
    ),
    *(Abuse(name, code, "memory_limit") for name, code in HIDINGS.items()),
    Abuse(
        "folders deeper than any path",
        """
import os
for _ in range(3000):
    os.mkdir("d", 0o300)
    os.chdir("d")
print("deep")
""",
        "finished",
        0,
        stdout=b"deep\n",
    ),
]

# What another process of the session is, and what it could be made to say in place of init.
LOOK_IN = """
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in () if int(pid) == os.getpid() else ('environ', 'fd', 'maps', 'mem'):
        try: os.listdir(f'/proc/{pid}/fd') if name == 'fd' else open(f'/proc/{pid}/{name}', 'rb')
        except OSError: continue
        print(pid, name)
"""
