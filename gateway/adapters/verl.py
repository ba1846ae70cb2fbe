"""Rows as `AgentLoopOutput` of verl, one per row.

outputs = outputs_of(item)        # in an agent loop, or in a trainer that reads the buffer
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from gateway.items import rows_in
from gateway.packing import spread


def outputs_of(
    item: Mapping[str, Any], *, prompt_length: int | None = None, response_length: int | None = None
) -> list[Any]:
    """The outputs of one trajectory. Rows that are masked are among them, with mask 0.

    prompt_length    longest prompt; a row with a longer one is masked, not cut: its tokens would
                     stand in another context
    response_length  longest response; what is behind it is cut off, which changes no context
    """
    loop: Any = import_module("verl.experimental.agent_loop.agent_loop")
    made = []
    for row, reward in rows_in(item):
        begin = len(row.tokens) - row.response_length
        mask = spread(row.mask)
        versions = [version for _, version in row.versions if version != -1]
        too_long = prompt_length is not None and begin > prompt_length
        masked = row.masked or too_long
        if masked:
            mask = [0] * len(mask)
        extra = {
            "min_global_steps": min(versions, default=None),
            "max_global_steps": max(versions, default=None),
            "traj_masked": masked, "cause": row.cause or ("prompt_length" if too_long else ""),
            "session": item["session"], "weight": item["weight"],
        }  # fmt: skip
        tokens = row.tokens.tolist()
        made.append(
            loop.AgentLoopOutput(
                prompt_ids=tokens[:begin][-prompt_length:] if prompt_length else tokens[:begin],
                response_ids=tokens[begin:][:response_length],
                response_mask=mask[:response_length],
                response_logprobs=row.logprobs.tolist()[:response_length],
                reward_score=reward, num_turns=2 * len(row.calls),
                metrics=loop.AgentLoopMetrics(), extra_fields=extra,
            )
        )  # fmt: skip
    return made
