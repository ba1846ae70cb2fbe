"""Programs of one session, in one interpreter, in a real jail."""

from typing import Any

from jail.models import CodeRequest
from tests.worker.lifecycle.conftest import quick
from worker.lifecycle import SandboxLifecycle
from worker.lifecycle.code import SessionSandbox
from worker.lifecycle.local import LocalProvider


async def test_programs_of_a_session_share_an_interpreter(real_redis, tmp_path):
    settings = quick(startup_timeout=60.0, session_idle=60.0)
    provider = LocalProvider(tmp_path)
    life = SandboxLifecycle(real_redis, provider, run="test", settings=settings)
    sandbox = SessionSandbox(life)

    async def ran(code: str, **more: Any) -> tuple[str, str, int | None]:
        request = CodeRequest(code=code, instance_id="s", **{"run_timeout": 30, **more})
        result = await sandbox.run(request)
        assert result.run_result is not None
        return result.stdout, result.stderr, result.run_result.return_code

    assert await ran("import math\nx = 41\nprint(input())", stdin="hi") == ("hi\n", "", 0)
    assert await ran("x += 1\nprint(x, math.floor(2.5))") == ("42 2\n", "", 0)
    await ran("import asyncio\ntask = asyncio.create_task(asyncio.sleep(0, 9))")
    assert await ran("print(await task)\n!echo {x}\ndisplay('x')") == ("9\n42\n'x'\n", "", 0)
    _, told, code = await ran("def f():\n    return 1 / 0\nf()")
    shown = [line.strip() for line in told.splitlines() if "~" not in line]
    assert (shown[0], shown[2], shown[4:]) == (
        "Traceback (most recent call last):", "f()",
        ["return 1 / 0", "ZeroDivisionError: division by zero"],
    )  # fmt: skip
    assert (shown[1].partition("_")[0], code) == ('File "main', 1)
    assert await ran("raise SystemExit(7)") == ("", "", 7)
    assert await ran("raise SystemExit('why')") == ("", "why\n", 1)
    assert (await ran("def f(:"))[2] == 1
    # Ten seconds: a slow machine needs some of them to come as far as the loop.
    printed, told, code = await ran(
        "import time\nprint('so far')\nwhile True: time.sleep(0.01)", run_timeout=10
    )
    assert (printed, code) == ("so far\n", None)
    unmarked = "".join(line for line in told.splitlines(keepends=True) if line.strip(" ^\n"))
    assert unmarked.endswith(
        "line 3, in <module>\n    while True: time.sleep(0.01)\nKeyboardInterrupt\n"
    )
    assert await ran("print(x)") == ("42\n", "", 0)
    assert await ran("import os; os._exit(3)") == (
        "", "[the interpreter has died of this program]\n", 1,
    )  # fmt: skip
    _, told, _ = await ran("print(x)")
    assert told.startswith("[a new interpreter: the variables of earlier programs are gone]\n")
    assert told.endswith("NameError: name 'x' is not defined\n")
    assert await life.end_session("s")
    assert [each async for each in provider.list({})] == []
    await sandbox.close()
