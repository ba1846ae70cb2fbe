"""NeMo Gym gets session sandboxes as a provider, and a verify response that masks.

    sandbox: {penstock: {}}                                # found by its entry point

    class Answer(BaseVerifyResponse, Maskable): ...        # of a resources server

    async def verify(self, body):
        return verify_response(body, await grader.grade(program, body.ground_truth), Answer)

NeMo-RL drops the loss of a response whose `instance_config.mask_sample` is true, if the environment
has `should_mask_flagged_samples`. Newer releases of NeMo Gym have fields for the same in every
response, and leave a masked one out of their scores.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nemo_gym.sandbox.providers.base import (
    SandboxCreateError,
    SandboxExecResult,
    SandboxHandle,
    SandboxSpec,
    SandboxStatus,
)
from pydantic import BaseModel

from ground import PenstockError
from ground.process import aside
from worker.hosts.grading import Grade
from worker.hosts.process_lifecycle import lifecycle_here
from worker.lifecycle.provider import SandboxSpec as OurSpec
from worker.lifecycle.sandbox import OpenSandbox

_KIND = "verifier_error"  # of NeMo Gym's own vocabulary


class Provider:
    """Sandboxes of `provider`, by default those of PENSTOCK_SESSION_PROVIDER.

    `options` are passed to that provider with each sandbox.
    """

    name = "penstock"

    def __init__(self, provider: str = "", options: Mapping[str, Any] | None = None) -> None:
        self._lifecycle = lifecycle_here(provider)
        self._options = dict(options or {})

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Start a sandbox. What cannot be had here is refused by `SandboxCreateError`, and never
        ignored."""
        asked = spec.resources
        if spec.entrypoint or asked.gpu or asked.gpu_type or getattr(spec, "ports", ()):
            raise SandboxCreateError("a session sandbox has no entrypoint, no ports and no GPU")
        options = self._options | spec.provider_options
        if asked.disk_gib:
            options["disk_mb"] = asked.disk_gib * 1024
        given = OurSpec(
            spec.image or "", spec.env, asked.cpu, asked.memory_mib, options, ttl=spec.ttl_s
        )
        try:
            async with asyncio.timeout(spec.ready_timeout_s):
                sandbox = await self._lifecycle.start(given)
        except TimeoutError:
            late = f"the sandbox was not ready within {spec.ready_timeout_s:g} s"
            raise SandboxCreateError(late) from None
        except PenstockError as failure:
            raise SandboxCreateError(str(failure)) from failure
        return SandboxHandle(sandbox.name, self.name, _Handled(sandbox, spec.workdir or ""))

    async def exec(
        self,
        handle: SandboxHandle,
        command: str,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_s: float | None = None,
        user: str | int | None = None,
    ) -> SandboxExecResult:
        """Run a shell command. A dead sandbox raises; a command out of time has 124."""
        if user is not None:
            raise ValueError(
                f"user {user!r}: the commands of a sandbox have one user, so name none. An agent's "
                "config may say `user: null`"
            )
        box: _Handled = handle.raw
        longest = self._lifecycle.settings.sandbox_ttl
        ended = await box.sandbox.exec(
            ["sh", "-c", command],
            timeout=longest if timeout_s is None else timeout_s,
            cwd=cwd or box.workdir,
            env=env,
        )
        out, err = (text.decode(errors="replace") for text in (ended.stdout, ended.stderr))
        if ended.exit_code is None:
            return SandboxExecResult(out, err, 124, "timeout")
        code = ended.exit_code
        return SandboxExecResult(out, err, code if code >= 0 else 128 - code)

    async def upload_file(self, handle: SandboxHandle, source_path: Path, target_path: str) -> None:
        content = await aside(Path(source_path).read_bytes)
        await handle.raw.sandbox.write_file(target_path, content)

    async def download_file(
        self, handle: SandboxHandle, source_path: str, target_path: Path
    ) -> None:
        content = await handle.raw.sandbox.read_file(source_path)
        await aside(partial(_keep, Path(target_path), content))

    async def status(self, handle: SandboxHandle) -> SandboxStatus:
        alive = await handle.raw.sandbox.is_alive()
        return SandboxStatus.RUNNING if alive else SandboxStatus.STOPPED

    async def close(self, handle: SandboxHandle) -> None:
        await self._lifecycle.stop(handle.raw.sandbox)

    async def aclose(self) -> None:
        """The lifecycle serves other providers of this process too."""


class _Handled:
    """The sandbox of a handle, and its folder."""

    def __init__(self, sandbox: OpenSandbox, workdir: str) -> None:
        self.sandbox, self.workdir = sandbox, workdir


class Maskable(BaseModel):
    """The field in which NeMo-RL looks for the mask: a base of a server's own verify response."""

    instance_config: dict[str, Any]


R = TypeVar("R", bound=Maskable)


def verify_response(body: BaseModel, grade: Grade, response: type[R], **more: Any) -> R:
    """The answer to `verify`. `response` is the server's own class, and `more` its own fields.

    A masked grade has reward 0.0 and `instance_config.mask_sample`; also `mask_sample`,
    `failure_kind` and `failure_reason`, if the class has these. An exception in its place would
    end the collection of all rollouts.
    """
    if not issubclass(response, Maskable):
        raise TypeError(f"{response.__name__} must have `Maskable` among its bases")
    about = {"mask_sample": grade.masked, "mask_reason": grade.reason if grade.masked else ""}
    given = {"reward": grade.value or 0.0, "instance_config": about}
    of_newer = {
        "mask_sample": grade.masked,
        "failure_kind": _KIND if grade.masked else None,
        "failure_reason": f"{grade.reason}: {grade.message}" if grade.masked else None,
    }
    given |= {name: said for name, said in of_newer.items() if name in response.model_fields}
    return response(**(body.model_dump() | given | more))


def _keep(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
