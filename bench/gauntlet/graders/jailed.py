"""Another grader, run in Penstock's embedded sandbox: for those that isolate nothing.

    GAUNTLET_GRADER=graders/prime_code.py PENSTOCK_SANDBOX_PYTHON=/path/to/its/python \
        python gauntlet.py graders/jailed.py
"""

import json
import os
import secrets
from pathlib import Path
from typing import Any

from jail import LocalSandbox
from worker import CodeRequest

GRADER = Path(os.environ["GAUNTLET_GRADER"]).read_text()
LANGUAGES, MODES = {"python"}, {"function", "stdin"}
_WITHIN = """
import json, os, sys
given = json.loads(sys.stdin.read())
answers = os.dup(1)
names = {"__name__": "grader"}
exec(given["grader"], names)
found = names["grade"](given["problem"], given["language"], given["code"])
os.write(answers, f"\\n{given['mark']} {json.dumps(found)}\\n".encode())
os._exit(0)
"""


async def grade(problem: dict[str, Any], language: str, code: str) -> float | None:
    mark = secrets.token_hex(8)
    asked = {
        "grader": GRADER, "problem": problem, "language": language, "code": code,
        "mark": mark,
    }  # fmt: skip
    sandbox = LocalSandbox.from_settings()
    try:
        request = CodeRequest(
            code=_WITHIN, stdin=json.dumps(asked), run_timeout=50, memory_limit_mb=1024
        )
        result = await sandbox.run(request)
    finally:
        await sandbox.close()
    for line in (result.stdout or "").splitlines():
        word, _, found = line.partition(" ")
        if word == mark:
            return None if found == "null" else float(found)
    raise RuntimeError(f"the grader ended: {result.error_kind} {(result.stderr or '')[-150:]}")
