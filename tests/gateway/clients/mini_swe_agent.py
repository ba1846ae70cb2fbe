"""mini-swe-agent with its own configuration: it looks around, and submits."""

import os
import tempfile
from pathlib import Path

import minisweagent
import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

config = yaml.safe_load(
    (Path(minisweagent.__file__).parent / "config" / "mini.yaml").read_text()
)  # fmt: skip
given = config["model"] | {
    "model_name": "openai/m",
    "model_kwargs": {
        "api_base": os.environ["GATEWAY"] + "/v1", "api_key": os.environ["KEY"],
        "custom_llm_provider": "openai",
    },
    "cost_tracking": "ignore_errors",
}  # fmt: skip
known = {name: config["agent"][name] for name in ("system_template", "instance_template")}
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "README").write_text("a test\n")
    agent = DefaultAgent(LitellmModel(**given), LocalEnvironment(cwd=folder), **known)
    ended = agent.run("Say which files there are.")
assert ended["exit_status"] == "Submitted", ended
assert any("README" in str(message.get("content")) for message in agent.messages)
