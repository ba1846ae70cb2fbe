"""A service of `penstock up`: ends when the one that started it does, however that ends.

Run as `python -m penstock.up.child <penstock's arguments>`, with a pipe for stdin that its parent
holds open, and with -P. Then the working folder is searched last for modules, and a `worker/` or a
`redis.py` in it is not taken for another's.
"""

import os
import signal
import sys
import threading

from penstock.entry import main

PATIENCE = 20.0


def end_with_the_parent() -> None:
    """End when stdin does: in order, and if that takes too long, at once."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    sys.path.append("")  # jobs and generators may name modules of the user's
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    main()
