"""smolagents' CodeAgent: it writes Python between marks, and stops at strings."""

import os

from smolagents import CodeAgent, OpenAIServerModel

model = OpenAIServerModel("m", api_base=os.environ["GATEWAY"] + "/v1", api_key=os.environ["KEY"])
agent = CodeAgent(tools=[], model=model, max_steps=4, verbosity_level=0)
assert agent.run("How much is six times seven?") == 42
