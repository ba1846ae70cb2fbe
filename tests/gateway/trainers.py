"""The types of trainers: cut from a checkout or a wheel, or stand-ins with the same fields.

`SLIME_SOURCE`, `MILES_SOURCE` and `VERL_SOURCE` name folders that have the package.
"""

import ast
import enum
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

from pydantic import BaseModel

SOURCES = {
    name: os.environ.get(f"{name.upper()}_SOURCE", "") for name in ("slime", "miles", "verl")
}
Put = Callable[[str, ModuleType], None]


@dataclass
class Sample:
    """What slime and miles have of it that an adapter fills."""

    class Status(enum.Enum):
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    tokens: list[int] = field(default_factory=list)
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.COMPLETED
    metadata: dict[str, Any] = field(default_factory=dict)


class AgentLoopMetrics(BaseModel):
    generate_sequences: float = 0.0


class AgentLoopOutput(BaseModel):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}


def module(put: Put, name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    made.__path__ = []
    made.__dict__.update(names)
    put(name, made)
    return made


def install(put: Put, trainer: str, *, real: bool) -> None:
    """Put a trainer's types where its adapter imports them."""
    if trainer == "verl":
        for name in ("verl", "verl.experimental", "verl.experimental.agent_loop"):
            module(put, name)
        names: dict[str, Any] = {
            "AgentLoopMetrics": AgentLoopMetrics, "AgentLoopOutput": AgentLoopOutput
        }  # fmt: skip
        if real:
            names = _classes(Path(SOURCES["verl"]) / "verl/experimental/agent_loop/agent_loop.py")
        module(put, "verl.experimental.agent_loop.agent_loop", **names)
        return
    for name in (trainer, f"{trainer}.utils", f"{trainer}.rollout"):
        module(put, name)
    output = lambda samples: SimpleNamespace(samples=samples)  # noqa: E731
    module(put, f"{trainer}.rollout.base_types", RolloutFnTrainOutput=output)
    if not real:
        module(put, f"{trainer}.utils.types", Sample=Sample)
        return
    for name in ("torch", "numpy"):
        module(put, name, Tensor=Sample, ndarray=Sample, dtype=Sample, Size=Sample)
    module(put, "slime.utils.misc", decode_int32_meta_array=None)
    file = Path(SOURCES[trainer]) / trainer / "utils" / "types.py"
    spec: Any = importlib.util.spec_from_file_location(f"{trainer}.utils.types", file)
    found = importlib.util.module_from_spec(spec)
    put(f"{trainer}.utils.types", found)
    spec.loader.exec_module(found)


def _classes(file: Path) -> dict[str, Any]:
    """The two models of verl's file, which imports Ray and torch otherwise."""
    names = ("AgentLoopMetrics", "AgentLoopOutput")
    kept = [
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name in names
    ]
    space: dict[str, Any] = {"BaseModel": BaseModel, "Optional": Optional, "Any": Any}
    space["__name__"] = __name__
    exec(compile(ast.Module(kept, []), str(file), "exec"), space)
    for name in names:
        space[name].model_rebuild(_types_namespace=space)
    return {name: space[name] for name in names}
