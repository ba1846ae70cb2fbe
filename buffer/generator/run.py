"""A rollout runs as a process: `python -m buffer.generator.run FILE PARENT < payload`.

It ends when its server does, however that ends: two generators of one rollout
would do everything twice.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from buffer.generator.discovery import load_module
from ground import PenstockError
from ground.logs import configure_logging
from ground.settings import GroundSettings


def main() -> None:
    """Run the file's `run_rollout` on the payload from stdin."""
    path, parent = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    settings = GroundSettings.load()
    configure_logging(settings.log_format, settings.log_level)
    payload = json.load(sys.stdin)
    try:
        load_module(path).run_rollout(payload)
    except PenstockError as fault:
        raise SystemExit(f"penstock: {fault}") from None


def _end_with(parent: int) -> None:
    """The parent's death makes us somebody else's child; there is no event for it everywhere."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.killpg(0, 9)


if __name__ == "__main__":
    main()
