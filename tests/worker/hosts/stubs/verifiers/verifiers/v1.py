import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

A = TypeVar("A")
B = TypeVar("B")
DataT = TypeVar("DataT")


class SandboxError(Exception): ...


class State(BaseModel): ...


class TaskData(BaseModel):
    prompt: str = ""


class ToolsetConfig(BaseModel): ...


class AgentConfig(BaseModel): ...


class AgentInfo(BaseModel):
    config: AgentConfig


class TraceTask(BaseModel):
    type: str
    data: Any


class Trace(BaseModel):
    task: TraceTask
    agent: AgentInfo
    state: Any = State()
    root_reply: str = ""
    rewards: dict[str, float | None] = {}

    @property
    def last_reply(self) -> str:
        return self.root_reply

    @property
    def reward(self) -> float:
        return sum(value for value in self.rewards.values() if value is not None)


def tool(function: Any) -> Any:
    return function


def reward(function: Callable[..., Any]) -> Callable[..., Any]:
    function.is_reward = True  # type: ignore[attr-defined]
    return function


class Toolset(Generic[A, B]):
    def __init__(self, config: Any) -> None:
        from contextlib import AsyncExitStack

        self.config = config
        self.state = SimpleNamespace(masked="")
        self._exit_stack = AsyncExitStack()


class Task(Generic[DataT]):
    def __init__(self, data: DataT) -> None:
        self.data = data

    async def score(self, trace: Trace) -> None:
        names = [name for name in dir(self) if hasattr(getattr(self, name), "is_reward")]
        trace.rewards |= dict.fromkeys(names)
        values = await asyncio.gather(*(getattr(self, name)(trace) for name in names))
        trace.rewards |= dict(zip(names, values, strict=True))
