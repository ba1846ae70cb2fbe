"""The settings of workers, of trainers, of hosts' servers, and of what submits jobs."""

import math
import os
import re
from functools import cache
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator

from ground import SettingError
from ground.keys import check_name
from ground.settings import Settings
from ground.shares import check_share, read_share

ANYTHING = "*"  # in PENSTOCK_ALLOW
_NAME = re.compile(r"(?:[^\W\d]\w*\.)+(?:\*|[^\W\d]\w*)")
_ADDRESS = re.compile(r"https?://[^\s*/]+(?:/[^\s*]*?)?(?:/\*)?")


def read_names(names: str) -> frozenset[str]:
    """The words of PENSTOCK_ALLOW. Raises `ValueError` for a word that can name nothing."""
    words = frozenset(names.replace(",", " ").split())
    for word in sorted(words):
        if word != ANYTHING and not _NAME.fullmatch(word) and not _ADDRESS.fullmatch(word):
            raise ValueError(
                f"{word!r} is none of module.function, module.*, a webhook's https:// address, *"
            )
    return words


class WorkerSettings(Settings):
    """Settings of every process that runs code jobs, whichever RQ worker it is."""

    sandbox: str = Field(
        "fusion",
        description="Where programs run: `fusion`, `local` (per worker), `shared` (per machine),"
        " or the dotted name of your own factory.",
    )
    sandbox_fusion_url: str = Field(
        "",
        validation_alias=AliasChoices("PENSTOCK_SANDBOX_FUSION_URL", "sandbox_fusion_url"),
        description="Sandbox Fusion's address. Several, separated by spaces, share the load.",
    )
    sandbox_token: SecretStr | None = Field(
        None,
        description="Bearer token that `penstock sandbox serve` asks for and that workers send"
        " to Sandbox Fusion.",
    )
    sandbox_margin: float = Field(
        40.0,
        gt=0,
        description="Seconds that an attempt at a sandbox server may take beyond the program's"
        " limits. Keep it above the server's `--patience`.",
    )
    sandbox_attempts: int = Field(
        6, ge=1, description="Attempts per program when the sandbox fails."
    )
    gate: str = Field(
        "",
        description="The gate that each execution takes a permit from, on the queue's Redis."
        " Unset: no limit.",
    )
    gate_limit: int | None = Field(
        None,
        ge=1,
        description="Limit of that gate if it does not exist yet. Unset: the gate must exist.",
    )
    concurrency: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Jobs that one `ConcurrentWorker` runs at once. Unset: 256, or the capacity"
        " of the embedded sandbox.",
    )
    allow: str | None = Field(
        None,
        description="What jobs may run besides code: functions, `module.*`, webhook addresses,"
        " `*`. Unset: nothing, or anything under `rq worker`.",
    )
    job_lease: float = Field(
        30.0,
        ge=0.5,
        description="Seconds of a running job's lease. A dead worker's jobs run elsewhere within"
        " this and a third of it.",
    )
    job_deaths: int = Field(
        3,
        ge=0,
        description="Workers that may die under a job without `Retry` before the job fails.",
    )

    breaker_last: int = Field(
        64,
        ge=0,
        le=1024,
        description="Programs among which a queue's breaker counts those without an outcome."
        " 0: no breaker.",
    )
    breaker_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="The share of them that opens it, which pauses the queue or its gate until a"
        " few succeed.",
    )

    @field_validator("gate")
    @classmethod
    def _gate_is_a_name(cls, gate: str) -> str:
        return check_name(gate, "a gate") if gate else gate

    @field_validator("allow")
    @classmethod
    def _allow_is_names(cls, allow: str | None) -> str | None:
        if allow:
            read_names(allow)
        return allow

    @property
    def jobs_at_once(self) -> int:
        """How many jobs a worker takes. More than its sandbox has room for would wait in the
        worker, not in the queue."""
        if self.concurrency is not None:
            return self.concurrency
        if self.sandbox not in ("local", "shared"):
            return 256
        from jail.settings import SandboxSettings

        return SandboxSettings.load().sandbox_concurrency or 4 * (os.cpu_count() or 1)

    @property
    def breaker(self) -> tuple[int, int] | None:
        """How many ends without an outcome open it, of how many ends; None: there is none."""
        if not self.breaker_last:
            return None
        need = math.ceil(round(self.breaker_share * self.breaker_last, 9))  # 0.55 of 100 is 55
        return need, self.breaker_last

    @property
    def of_stock_worker(self) -> "WorkerSettings":
        """A process for each job must not have a sandbox for each."""
        return self.model_copy(update={"sandbox": "shared"}) if self.sandbox == "local" else self

    @property
    def fusion_urls(self) -> list[str]:
        if not self.sandbox_fusion_url.split():
            raise SettingError(
                "PENSTOCK_SANDBOX_FUSION_URL",
                "is not set: name a sandbox, http://host:8080, or set PENSTOCK_SANDBOX=local, the"
                " embedded one (penstock worker --sandbox local)",
            )
        return self.sandbox_fusion_url.split()


class RewardSettings(Settings):
    """Settings of the reward functions with verl's signatures."""

    reward_failures: Literal["raise", "zero"] = Field(
        "raise",
        description="What `compute_score` does when a sandbox or Redis fails: `raise` raises"
        " `RewardUnknown`, `zero` returns 0.",
    )


class ToolSettings(Settings):
    """Settings of a trainer's process that has verl."""

    verl_tool_path: bool = Field(
        False,
        description="Bring back the module `verl.tools.sandbox_fusion_tools`, which verl 0.8"
        " removed, as an alias of `worker.tool`.",
    )


class HostSettings(Settings):
    """Servers that speak a host's protocol."""

    openenv_token: SecretStr | None = Field(
        None, description="The bearer token that `penstock openenv` asks its clients for."
    )


@cache
def worker_settings() -> WorkerSettings:
    """This process's settings; its environment is read once."""
    return WorkerSettings.load()


class QueueSettings(Settings):
    """Settings of every process that submits jobs."""

    share: str = Field(
        "",
        description="The share of its queue that a `CodeQueue`'s jobs belong to, if it names none."
        " Unset: no share.",
    )
    result_ttl: int = Field(
        3600,
        ge=60,
        description="Seconds for which Redis keeps a job's end. Set it on workers too, for"
        " cases above 16 kB.",
    )

    @field_validator("share")
    @classmethod
    def _share_is_a_name(cls, share: str) -> str:
        return read_share(share)


WhenPaused = Literal["wait", "raise"]


def check_when_paused(given: str) -> None:
    if given not in ("wait", "raise"):
        raise SettingError("when_paused", f"is 'wait' or 'raise', not {given!r}")


def share_here(given: str | None) -> str:
    """The share that is given, or that of this process."""
    return QueueSettings.load().share if given is None else check_share(given)


def result_ttl_here(given: int | None) -> int:
    """How long jobs are kept: as given, or as this process is set."""
    return QueueSettings.load().result_ttl if given is None else given


def require_rqs_own_keys() -> None:
    """RQ 3 has a setting for a prefix of its keys; our scripts name the keys without one."""
    import rq.defaults  # which no setting needs

    prefix = getattr(rq.defaults, "RQ_KEY_PREFIX", "rq")
    if prefix != "rq":
        raise SettingError(
            "RQ_KEY_PREFIX",
            f"is {prefix!r}, and the keys of Penstock's queues begin with 'rq'; unset it, and keep"
            " fleets apart by a Redis database (redis://host/1) or by the names of their queues",
        )
