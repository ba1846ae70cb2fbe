"""Programs earn rewards here: what passes is scored, and what our side broke is masked. A masked
sample is never a 0."""

from worker.reward.api import call_sandbox_api
from worker.reward.check import RewardUnknown, check_correctness, compute_score
from worker.reward.scoring import Case, CaseResult, Score, score
from worker.reward.semaphore import GateSemaphore

__all__ = [
    "Case",
    "CaseResult",
    "GateSemaphore",
    "RewardUnknown",
    "Score",
    "call_sandbox_api",
    "check_correctness",
    "compute_score",
    "score",
]
