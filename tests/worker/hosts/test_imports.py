"""Each host's file is loaded by its host alone: it imports no torch, no Ray, and no other host."""

import json
import os
import subprocess
import sys

import pytest

from tests.architecture.source import ROOT
from tests.worker.hosts.stubbed import path_of

FILES = sorted(file.stem for file in (ROOT / "worker" / "hosts").glob("[!_]*.py"))
HEAVY = {
    "areal", "inspect_ai", "mcp", "nemo_gym", "numpy", "openenv", "openrlhf", "pandas", "ray",
    "sglang", "skyrl", "skyrl_gym", "skyrl_train", "slime", "torch", "transformers", "trl",
    "uni_agent", "verifiers", "verl", "vllm",
}  # fmt: skip
# By what a file is loaded: with all that it imports itself, it is there already.
LOADED_BY = {
    "inspect_ai": "inspect_ai.util", "nemo_gym": "nemo_gym.sandbox.providers.base",
    "openenv": "openenv.core.env_server.http_server", "skyrl": "skyrl_gym.envs.base_text_env",
    "uni_agent": "uni_agent.sandbox.base", "verifiers": "verifiers.v1",
}  # fmt: skip
SHARED = {"grades_breaker", "grading", "process_lifecycle", "session"}

IMPORT = """
import importlib, json, sys
_, host, loaded_by = sys.argv
if loaded_by:
    importlib.import_module(loaded_by)
before = set(sys.modules)
importlib.import_module("worker.hosts." + host)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.parametrize("host", FILES)
def test_a_hosts_file_imports_nothing_heavy_and_no_other_host(host: str) -> None:
    stand_in = path_of(host.replace("_", "-")) or ""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT, host, LOADED_BY.get(host, "")],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{stand_in}"},
        capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    loaded = set(json.loads(ran.stdout))
    its_own = LOADED_BY.get(host, "").partition(".")[0]
    assert not {module.partition(".")[0] for module in loaded} & HEAVY - {its_own}
    others = {f"worker.hosts.{other}" for other in set(FILES) - SHARED - {host}}
    assert not others & loaded
