from uni_agent.sandbox.base import ExecResult, Sandbox, SandboxConfig
from uni_agent.sandbox.registry import build_sandbox

__all__ = ["ExecResult", "Sandbox", "SandboxConfig", "build_sandbox"]
