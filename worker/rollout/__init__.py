"""A rollout goes over several turns with tools, at any OpenAI-compatible server. A trajectory that
ended is kept at once."""

from worker.rollout.batch import Batch, run_batch
from worker.rollout.exact import GatewayRefusal
from worker.rollout.gsm8k import Gsm8kTool, gsm8k_score
from worker.rollout.request import RolloutRequest, ToolKwargs
from worker.rollout.rollout import Rollout
from worker.rollout.toolbox import Tool
from worker.rollout.trajectory import CallMetrics, Row, StopReason, Trajectory, TurnMetrics

__all__ = [
    "Batch",
    "CallMetrics",
    "GatewayRefusal",
    "Gsm8kTool",
    "Rollout",
    "RolloutRequest",
    "Row",
    "StopReason",
    "Tool",
    "ToolKwargs",
    "Trajectory",
    "TurnMetrics",
    "gsm8k_score",
    "run_batch",
]
