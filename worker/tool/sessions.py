"""Where the sessions of trajectories live: one that is found elsewhere has forgotten what it did.

A session ends when it idles for too long or its sandbox dies, and the next call opens a new
one. Run there, a program would fail for what is missing, as if the model had got it wrong.
"""

import threading
from collections import OrderedDict

from worker.errors import SandboxFailure
from worker.models import CodeResult

_MOST = 10_000  # trajectories remembered; a host tells of the end of none


class Sessions:
    """Those that one tool has seen."""

    def __init__(self) -> None:
        self._homes: OrderedDict[str, str] = OrderedDict()
        self._guard = threading.Lock()

    def check(self, session: str, result: CodeResult) -> None:
        """Raises `SandboxFailure` where an earlier call of the session ran in another sandbox."""
        here = result.executor_pod_name
        if not here or result.error_kind == "infrastructure":
            return
        with self._guard:
            home = self._homes.setdefault(session, here)
            self._homes.move_to_end(session)
            if len(self._homes) > _MOST:
                self._homes.popitem(last=False)
        if home != here:
            raise SandboxFailure(
                f"the session {session} was in the sandbox {home}, which is gone, and all that "
                "earlier calls left in it (PENSTOCK_SESSION_IDLE, PENSTOCK_SANDBOX_TTL)",
                reason="session_lost",
            )
