"""The errors of a session sandbox. None of them says anything of a program.

SandboxFailure
├── StartFailed       no attempt made a sandbox; mask the sample
├── StartRefused      the provider said no for good: says what to set
├── SandboxLost       it is gone: it died, or was ended from elsewhere
└── CommandFailed     the provider could not run a command inside
"""

from jail.errors import SandboxFailure, SandboxUnfit


class StartFailed(SandboxFailure):
    """No sandbox, after this many attempts."""

    def __init__(self, provider: str, attempts: int, spent: float, last: BaseException) -> None:
        super().__init__(
            f"no {provider} sandbox after {attempts} attempt{'s' if attempts > 1 else ''} "
            f"in {spent:.3g} s; the last failed with {shown(last)}. More time: "
            "PENSTOCK_INIT_WALL_BUDGET; more attempts: PENSTOCK_START_ATTEMPTS",
            reason="start_failed",
        )
        self.attempts = attempts


class StartRefused(SandboxUnfit):
    """Trying again would change nothing."""

    def __init__(self, provider: str, problem: BaseException, advice: str) -> None:
        super().__init__(
            f"{provider} refuses to make the sandbox: {shown(problem)}. "
            f"{advice or 'Correct the request; it is not tried again'}",
            reason="start_refused",
        )


class SandboxLost(SandboxFailure):
    """The sandbox is gone, and its state with it."""

    def __init__(self, name: str, why: str) -> None:
        why = why.removesuffix(". Open a new one")  # a session of this machine says it too
        super().__init__(f"sandbox {name} is lost: {why}. Open a new one", reason="sandbox_lost")


class SessionEnded(SandboxLost):
    """The session was ended while its sandbox was started. That one is ended too."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "its session was ended while it was started")


class CommandFailed(SandboxFailure):
    """The provider could not run the command; the sandbox may be well."""

    def __init__(self, name: str, problem: BaseException) -> None:
        super().__init__(
            f"sandbox {name}: {shown(problem)}", reason="exec_failed", may_be_running=True
        )


def shown(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}" if str(problem) else type(problem).__name__
