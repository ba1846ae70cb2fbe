"""ScaleBox's Python worker on one program: `python FILE FOLDER < {"code", "inputs", "outputs"}`.

FOLDER is ScaleBox's source. Prints {"seconds", "score"}.
"""

import asyncio
import json
import logging
import os
import sys
import time


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    os.chdir(sys.argv[1])  # it reads its configuration from there
    import structlog  # type: ignore[import-not-found]

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    from sandbox.datasets.types import (  # type: ignore[import-not-found]
        GeneralStdioTest,
        TestConfig,
    )
    from sandbox.utils import testing  # type: ignore[import-not-found]

    given = json.load(sys.stdin)
    pairs = zip(given["inputs"], given["outputs"], strict=True)
    cases = [GeneralStdioTest(input={"stdin": a}, output={"stdout": b}) for a, b in pairs]
    config = TestConfig(language="python", run_timeout=10, extra={"run_all_cases": True})
    began = time.perf_counter()
    found = asyncio.run(
        testing.check_python_stdio_test_cases_single_worker_exec(given["code"], cases, config)
    )
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "score": sum(one.passed for one in found) / len(cases)}))


if __name__ == "__main__":
    main()
