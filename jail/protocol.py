"""Every sandbox offers this to the worker: run one program, once. Some judge it over cases too."""

from typing import Protocol

from jail.judge.models import JudgeRequest, JudgeResult
from jail.judge.suite import Suite
from jail.models import CodeRequest, CodeResult


class Sandbox(Protocol):
    """A provider. An instance belongs to the event loop that first uses it.

    If its programs can outlive the process that asked for them, it has `outlives(request)`: the
    seconds that a program may continue. Its permit stays that long. If it kills a program whose
    `run` is cancelled, it says `kills_cancelled = True`. Otherwise that program's permit stays
    until its time limits are over. If it has servers, it may have `unreachable()`: the names of
    those that cannot be reached. Any thread calls it.
    """

    @property
    def name(self) -> str:
        """The provider's name, for logs and metrics: `fusion`, `local`."""

    @property
    def languages(self) -> frozenset[str]:
        """The languages it runs. Another one is refused with `SandboxUnfit`."""

    async def run(self, request: CodeRequest) -> CodeResult:
        """Run the program once and say how it ended, output truncated (`CodeResult.bounded`).

        Makes a single attempt: the caller holds a permit, and gives it back
        before it waits for another. Fills `running_seconds` and `isolation`.
        Raises a `SandboxFailure` if the program's own outcome is not known.
        Cancelling it stops the program, or at least stops waiting for it.
        """

    async def close(self) -> None:
        """Free what the instance holds. Harmless when repeated."""


class JudgingSandbox(Sandbox, Protocol):
    """A provider that compiles a program once and runs it on every case of a suite."""

    @property
    def judged_languages(self) -> frozenset[str]:
        """The languages it judges. For others the worker asks `run` once a case."""

    async def judge(self, request: JudgeRequest, suite: Suite) -> JudgeResult:
        """A verdict for each case. Makes a single attempt, as `run` does.

        The caller closes the suite. What the sandbox fails at for one case masks it alone;
        raises a `SandboxFailure` where nothing at all is known. Cancelling it ends all processes.
        """
