"""verl's tool agent loop, with the trajectories masked that failed on our side.

verl drops a tool's metrics; `SandboxFusionTool` leaves its note where verl keeps it. Every
token's mask becomes 0, so that nothing is learnt from the trajectory. Its reward stays what
the reward function says, which sees the note too, as `extra_info["extras"]`. Register it with
`actor_rollout_ref.rollout.agent.agent_loop_config_path` and a file that says

    - name: masking_tool_agent
      _target_: masking_agent_loop.MaskingToolAgentLoop
"""

from typing import Any

from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop


class MaskingToolAgentLoop(ToolAgentLoop):
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        extras = output.extra_fields.get("extras") or {}
        if extras.get("traj_masked"):
            output.response_mask = [0] * len(output.response_mask)
        return output
