"""What of TRL its page uses: rewards are asked for as TRL 1.16.0 does."""

import asyncio
import math
from types import SimpleNamespace

SAYS = ["```python\nprint(int(input()) ** 2)\n```", "```python\nprint(0)\n```"]


class GRPOConfig(SimpleNamespace):
    pass


class GRPOTrainer:
    def __init__(self, model, reward_funcs, args, train_dataset, environment_factory=None):
        assert isinstance(model, str)
        self.args, self.reward_funcs, self.rows = args, reward_funcs, train_dataset
        self.environment_factory = environment_factory
        self.state = SimpleNamespace(log_history=[])

    def train(self):
        rows = [row for row in self.rows for _ in range(self.args.num_generations)]
        said = [SAYS[n % len(SAYS)] for n, _ in enumerate(rows)]
        if isinstance(rows[0]["prompt"], list):
            said = [[{"role": "assistant", "content": text}] for text in said]
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        logged = {}
        given = {
            "prompts": [row["prompt"] for row in rows], "completions": said,
            "completion_ids": [[0]] * len(rows), "trainer_state": self.state,
            "log_extra": lambda *_: None, "log_metric": logged.__setitem__,
        }  # fmt: skip
        if self.environment_factory is not None:
            given["environments"] = [self._rolled_out(row) for row in rows]
        rewards = asyncio.run(self._rewards(given | columns))
        logged["reward"] = sum(one for one in rewards if not math.isnan(one)) / len(rows)
        self.state.log_history.append(logged)

    def _rolled_out(self, row):
        environment = self.environment_factory()
        assert environment.reset(**row) is None
        asyncio.run(environment.run_code("print(1)"))
        return environment

    async def _rewards(self, given):
        if self.reward_funcs:
            found = await self.reward_funcs(**given)
        else:
            found = [await one.get_reward() for one in given["environments"]]
        return [math.nan if one is None else one for one in found]
