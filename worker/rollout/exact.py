"""Trajectories with exact tokens: each is a session at a gateway, which keeps what was sampled.

A session is known by its request's id. So a process that replaces one that died gets the answers
that the engine had given already. No turn is sampled twice.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ground import tracing
from ground.errors import PenstockError
from worker.rollout.request import RolloutRequest
from worker.rollout.trajectory import Masked, Row, StopReason, Trajectory

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_PATIENT: Any = {"max_retries": 8}  # some 40 s: a gateway that was killed is back by then


class GatewayRefusal(PenstockError):
    """A gateway opens no such session: the URL, the token, the task or the request is wrong."""


class Sessions:
    """The sessions of one task. The client has the gateway's URL, and the token that opens them."""

    def __init__(self, client: AsyncOpenAI, task: str) -> None:
        url = str(client.base_url)
        if not url.endswith("/v1/"):
            shown = _without_password(client.base_url)
            raise ValueError(f"with `task` the client's base_url is a gateway's, …/v1, not {shown}")
        self._client = client
        self._url = f"{url.removesuffix('v1/')}tasks/{task}/sessions"

    async def open(self, request: RolloutRequest) -> Session:
        """The request's session, also if another process has opened it. Raises `GatewayRefusal`, or
        `Masked` if the gateway is not there, or the session is over."""
        from openai import APIStatusError

        sampling = dict(request.sampling)
        sampling |= sampling.pop("extra_body", {})
        instance = request.request_id if request.instance_id is None else request.instance_id
        asked = request.session | {
            "uid": request.request_id, "instance_id": instance, "sampling": sampling,
        }  # fmt: skip
        try:
            opened = await _posted(self._client, self._url, asked)
        except APIStatusError as refusal:
            if refusal.status_code == 409:
                raise Masked(f"gateway: {_said(refusal)}") from None
            raise GatewayRefusal(
                f"the gateway at {_without_password(refusal.request.url)} refused a session"
                f" ({refusal.status_code}): {_said(refusal)}"
            ) from None
        client = self._client.with_options(api_key=opened["key"], **_PATIENT)
        return Session(self._client, client, f"{self._url}/{opened['session']}")


class Session:
    """The session of one trajectory. `client` speaks to the model in it."""

    def __init__(self, control: AsyncOpenAI, client: AsyncOpenAI, url: str) -> None:
        self._control, self._url = control, url
        self.client = client

    async def finalize(self, trajectory: Trajectory) -> None:
        """Give the trajectory its rows, and put them into the buffer with its score. If it was
        interrupted the session stays open. If the gateway masks it the trajectory is masked."""
        from openai import APIStatusError

        if trajectory.stop_reason is StopReason.INTERRUPTED:
            return
        extra = {"messages": trajectory.messages, "extra_info": _about(trajectory)}
        said = {"reward": trajectory.score, "extra": extra}
        try:
            if not trajectory.masked:  # before the end: if its answer is lost, the rows are here
                found = await _got(self._control, f"{self._url}?tokens=true")
                trajectory.rows = [_row(row) for row in found["rows"]]
            done = await _posted(self._control, f"{self._url}/finalize", said)
        except APIStatusError as refusal:
            trajectory.mask(f"gateway: {_said(refusal)}")
        except Masked as failure:
            trajectory.mask(str(failure))
        except (TypeError, ValueError) as odd:  # what a tool's calc_reward or the caller's data are
            trajectory.mask(f"gateway: its reward_scores, data or messages are no JSON: {odd}")
        else:
            if done["masked"] and not trajectory.masked:
                trajectory.mask(f"gateway: its rows are masked: {done['cause']}")


def _posted(client: AsyncOpenAI, url: str, body: dict[str, Any]) -> Awaitable[Any]:
    options = _PATIENT | {"headers": tracing.headers()}
    return _answer(client.post(url, cast_to=object, body=body, options=options))


def _got(client: AsyncOpenAI, url: str) -> Awaitable[Any]:
    return _answer(client.get(url, cast_to=object, options=_PATIENT))


async def _answer(asking: Awaitable[object]) -> Any:
    """The gateway's answer. Raises `Masked` if none came, or it failed: that is no refusal."""
    from openai import APIConnectionError, APIStatusError

    try:
        return await asking
    except APIConnectionError as failure:
        where = _without_password(failure.request.url)
        raise Masked(f"gateway: {failure} ({where})") from failure
    except APIStatusError as failure:
        if failure.status_code == 429 or failure.status_code >= 500:
            raise Masked(f"gateway: {failure.status_code}: {_said(failure)}") from failure
        raise


def _without_password(url: Any) -> Any:
    """A URL as it may be shown: a gateway's token may be in it."""
    return url.copy_with(username=None, password=None)


def _said(refusal: Any) -> str:
    """The gateway's sentence."""
    body = refusal.body
    return str(body.get("message") or body) if isinstance(body, dict) else str(refusal)


def _row(row: dict[str, Any]) -> Row:
    return Row(
        row["ids"], row["response"], row["mask"], row["logprobs"], row["versions"], row["masked"],
        row["cause"],
    )  # fmt: skip


def _about(trajectory: Trajectory) -> dict[str, Any]:
    """The fields of the buffer's item beside its rows."""
    why = {"traj_exit_reason": trajectory.exit_reason} if trajectory.masked else {}
    return {
        **trajectory.request.data, "stop_reason": trajectory.stop_reason.value,
        "reward_scores": trajectory.reward_scores, "traj_masked": int(trajectory.masked), **why,
    }  # fmt: skip
