#!/bin/sh
# A training run of verl 0.9 whose model has Penstock's tool. Append verl's own options (model, data,
# GPUs, batch sizes):
#
#     PENSTOCK_REDIS_URL=redis://redis:6379 sh examples/verl/train.sh trainer.n_gpus_per_node=8 …
#
# PYTHON is the interpreter that has verl and penstock. Ray's processes need the three variables that
# are exported here. A Ray that verl starts has them; else set them where you run `ray start`.
here=$(cd "$(dirname "$0")" && pwd)
: "${PENSTOCK_REDIS_URL:?name the Redis that the workers use: redis://host:6379}"
export PENSTOCK_REDIS_URL PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"
export VERL_USE_EXTERNAL_MODULES="masked_grpo${VERL_USE_EXTERNAL_MODULES:+,$VERL_USE_EXTERNAL_MODULES}"

exec "${PYTHON:-python3}" -m verl.trainer.main_ppo \
  algorithm.adv_estimator=masked_grpo \
  data.return_raw_chat=True \
  actor_rollout_ref.rollout.mode=async \
  actor_rollout_ref.rollout.multi_turn.enable=True \
  actor_rollout_ref.rollout.multi_turn.format=hermes \
  actor_rollout_ref.rollout.multi_turn.max_assistant_turns=8 \
  actor_rollout_ref.rollout.multi_turn.max_parallel_calls=4 \
  actor_rollout_ref.rollout.multi_turn.max_tool_response_length=2048 \
  actor_rollout_ref.rollout.multi_turn.tool_config_path="$here/sandbox_fusion_tool_config.yaml" \
  actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent_loops.yaml" \
  actor_rollout_ref.rollout.agent.default_agent_loop=masking_tool_agent \
  "$@"
