from collections.abc import Callable

from uni_agent.sandbox.base import Sandbox, SandboxConfig

SANDBOX_REGISTRY: dict[str, type[Sandbox]] = {}


def register_sandbox(name: str) -> Callable[[type[Sandbox]], type[Sandbox]]:
    def register(kind: type[Sandbox]) -> type[Sandbox]:
        kind.provider = name
        SANDBOX_REGISTRY[name] = kind
        return kind

    return register


def build_sandbox(config: SandboxConfig) -> Sandbox:
    return SANDBOX_REGISTRY[config.provider].from_config(config)
