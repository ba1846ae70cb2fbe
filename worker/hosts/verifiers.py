"""The adapter of verifiers (v1) and prime-rl: a reward that raises `vf.SandboxError` where our side
failed.

    class Squares(vf.Task[Row, CodeState, SquaresConfig]):
        @vf.reward
        async def correct(self, trace: vf.Trace) -> float:
            return await reward_of(trace, self.data.ground_truth)

        @classmethod
        def toolsets(cls, config):
            return [CodeToolset(config.tools)]

Such a trace is not `ok`: prime-rl leaves it out, and a rule of `retries` can run it again.
"""

import signal
import sys
from typing import Any

import verifiers.v1 as vf

from worker.hosts.grading import Grader
from worker.hosts.session import CodeSession

_GRADER = Grader()


class CodeState(vf.State):
    """The state that the tools of a rollout leave for its reward."""

    masked: str = ""  # why the rollout has no true reward


class CodeToolsetConfig(vf.ToolsetConfig):
    """The configuration has one server per rollout: a shared one would give all rollouts one
    sandbox."""

    language: str = "python"
    timeout: float = 30.0  # seconds per program
    max_output: int = 8192  # characters that the model reads
    provider: str = ""  # empty: PENSTOCK_SESSION_PROVIDER


class CodeToolset(vf.Toolset[CodeToolsetConfig, CodeState]):
    """A toolset with one tool, `run_code`, in a session sandbox that ends with its rollout."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        asked = self.config
        self.session = CodeSession(
            language=asked.language, timeout=asked.timeout,
            max_output=asked.max_output, provider=asked.provider,
        )  # fmt: skip
        self._exit_stack.push_async_callback(self.session.end)

    @vf.tool
    async def run_code(self, code: str) -> str:
        """Run a program, and read what it prints. Its files and Python variables stay."""
        answer = await self.session.run(code)
        self.state.masked = self.session.masked
        return answer.text


async def reward_of(trace: Any, truth: Any, grader: Grader = _GRADER) -> float:
    """The share of cases that the last program of the trace passes. Raises `vf.SandboxError` if it
    cannot be known, or if a tool's sandbox failed before."""
    if masked := getattr(trace.state, "masked", ""):
        raise vf.SandboxError(f"{masked}: the sandbox of run_code failed during the rollout")
    grade = await grader.grade(trace.last_reply, truth)
    if grade.value is None:
        raise vf.SandboxError(f"{grade.reason}: {grade.message}")
    return grade.value


async def code_reward(task: Any, trace: Any) -> float:
    """Reward by `reward_of` for the task's `ground_truth`: a function to name in a run's config."""
    return await reward_of(trace, task.ground_truth)


def _serve() -> None:
    """verifiers starts it so. Its server passes SIGTERM on, which would skip the sandbox's end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    CodeToolset.run()


if __name__ == "__main__":
    _serve()
