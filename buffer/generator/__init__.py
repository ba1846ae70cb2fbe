"""Generators play rollouts and write their items. A question that was dealt ends as an item, even
if its process dies. `base_generator.py` is the file to copy for a task of your own."""

from buffer.generator.crew import SAMPLING_PARAMS, BaseGenerator
from buffer.generator.math_reward import get_rule_based_math_reward
from buffer.generator.single_turn import query_single_turn

__all__ = ["SAMPLING_PARAMS", "BaseGenerator", "get_rule_based_math_reward", "query_single_turn"]
