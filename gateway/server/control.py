"""Trainers open, watch and finalize sessions here: under another key than agents'."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from buffer.item import HIGHEST_ROUND
from gateway.log import Budget, Session, SessionLog
from gateway.show import described
from gateway.training_rows import rows_of

control = APIRouter()

Task = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$")]
Sid = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Seconds = Annotated[float, Field(ge=0, le=86400)]


class Given(BaseModel):
    """A body for this server; it may have no unknown field."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Slot(Given):
    """A slot of the buffer, with its fence."""

    id: str
    fence: Annotated[str, Field(pattern="^[0-9]{1,18}$")]


class GivenBudget(Given):
    """The budget of a session; 0: without a bound."""

    tokens: int = Field(0, ge=0, le=2**53)
    turns: int = Field(0, ge=0, le=2**53)
    seconds: float = Field(0, ge=0, le=2**31)


class Sampling(Given):
    """How the model is sampled in this session, whatever its agent asks for."""

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = -1
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0)
    max_tokens: int | None = Field(None, ge=1, description="Of one answer.")
    seed: int | None = Field(
        None,
        ge=0,
        lt=2**63,
        description="Equal seeds, prompts and weights give equal answers, if the engine can.",
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list, max_length=16)
    stop_token_ids: list[int] = Field(default_factory=list, max_length=64)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    thinking: str = Field(
        "keep",
        pattern="^(keep|template)$",
        description="`keep`: tokens of thinking stay in the context. `template`: the template says,"
        " and each question may begin another row.",
    )


class Open(Given):
    """A session of one trajectory."""

    uid: Annotated[str, Field(min_length=1, max_length=512)]
    instance_id: (
        Annotated[str, Field(min_length=1, max_length=512)] | Annotated[int, Field(strict=True)]
    )
    round_number: int | None = Field(None, ge=0, lt=HIGHEST_ROUND)
    slot: Slot | None = None
    budget: GivenBudget = Field(default_factory=lambda: GivenBudget.model_validate({}))
    sampling: Sampling = Field(default_factory=lambda: Sampling.model_validate({}))


class Finalize(Given):
    """The end of a session."""

    reward: float | None
    rewards: dict[int, float] | None = Field(
        None, description="By call, for the rows that these calls are in."
    )
    extra: dict[str, Any] | None = Field(None, description="Further keys of the buffer's item.")
    drain: Seconds | None = Field(None, description="Seconds that calls under way still have.")


def _of(request: Request) -> tuple[SessionLog, str]:
    return request.app.state.sessions, request.app.state.run


@control.post("/tasks/{task}/sessions")
async def open_session(task: Task, asked: Open, request: Request) -> dict[str, Any]:
    """Open a session. The same uid again is the same session with its sampling, and a new key."""
    sessions, _ = _of(request)
    budget, sampling = asked.budget, asked.sampling.model_dump(exclude_unset=True)
    opened = await sessions.open(
        task, asked.uid, asked.instance_id, round_number=asked.round_number,
        slot=(asked.slot.id, asked.slot.fence) if asked.slot else None,
        budget=Budget(budget.tokens, budget.turns, budget.seconds), sampling=sampling,
    )  # fmt: skip
    key = opened.key
    return {"session": opened.session.sid, "key": key, "path": f"/s/{key}/v1"}


@control.get("/tasks/{task}/sessions")
async def list_sessions(task: Task, request: Request, most: int = 100) -> dict[str, Any]:
    """Open sessions, the longest without a call first."""
    sessions, _ = _of(request)
    return {"sessions": await sessions.listed(task, max(1, min(most, 1000)))}


@control.get("/tasks/{task}/sessions/{sid}")
async def show_session(
    task: Task, sid: Sid, request: Request, tokens: bool = False
) -> dict[str, Any]:
    """The calls of a session as they are now, and the rows that it would give."""
    sessions, run = _of(request)
    log = await sessions.read(Session(run, task, sid, {}))
    return described(log, rows_of(log, sessions.settings.gateway_on_hole), tokens=tokens)


@control.post("/tasks/{task}/sessions/{sid}/finalize")
async def finalize_session(
    task: Task, sid: Sid, asked: Finalize, request: Request
) -> dict[str, Any]:
    """Put the session's rows and reward into the buffer. A repeat gets the same answer."""
    sessions, run = _of(request)
    done = await sessions.finalize(
        Session(run, task, sid, {}), asked.reward, rewards=asked.rewards, extra=asked.extra,
        drain=asked.drain,
    )  # fmt: skip
    return {
        "outcome": str(done.outcome), "rows": done.rows, "counts": done.counts,
        "masked": done.masked, "cause": done.cause,
    }  # fmt: skip
