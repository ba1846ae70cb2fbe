from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class SandboxStatus(StrEnum):
    RUNNING = "running"
    STOPPED = "stopped"


@dataclass
class SandboxResources:
    cpu: float | None = None
    memory_mib: int | None = None
    disk_gib: int | None = None
    gpu: int | None = None
    gpu_type: str | None = None


@dataclass
class SandboxSpec:
    image: str | None = None
    ttl_s: float | None = None
    ready_timeout_s: float | None = None
    workdir: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    resources: SandboxResources = field(default_factory=SandboxResources)
    entrypoint: list[str] | None = None
    provider_options: dict[str, Any] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)


@dataclass
class SandboxHandle:
    sandbox_id: str
    provider_name: str
    raw: Any


@dataclass
class SandboxExecResult:
    stdout: str | None
    stderr: str | None
    return_code: int
    error_type: str | None = None


class SandboxCreateError(RuntimeError): ...
