"""GRPO whose groups leave out what is masked: verl's own counts its reward in the group's mean.

    VERL_USE_EXTERNAL_MODULES=masked_grpo     algorithm.adv_estimator=masked_grpo

A trajectory is masked if no token of it counts, as `masking_agent_loop` leaves it.
"""

from typing import Any

from verl.trainer.ppo import core_algos


@core_algos.register_adv_est("masked_grpo")
def masked_grpo(
    token_level_rewards: Any, response_mask: Any, index: Any, config: Any = None, **_: Any
) -> Any:
    masked = response_mask.sum(-1) == 0
    # Alone in a group, it is compared with nobody, and nobody with it.
    groups = [f"masked-{n}" if masked[n] else group for n, group in enumerate(index)]
    by_std = True if config is None else config.get("norm_adv_by_std_in_grpo", True)
    return core_algos.compute_grpo_outcome_advantage(
        token_level_rewards,
        response_mask,
        groups,
        norm_adv_by_std_in_grpo=by_std,
        config=config,
    )
