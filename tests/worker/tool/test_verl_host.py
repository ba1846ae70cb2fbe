"""verl 0.9's registry loads our YAML, and its agent loop drives our tool.

The cases run on a stub of verl's shape, and where verl is installed (`make conformance`)
on verl itself.
"""

import asyncio
import gc
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.harness.servers import until
from tests.worker.scripted_answers import Answer
from tests.worker.tool.conftest import TRACEBACK
from tests.worker.tool.hosts import ROOT, SAID, SHOWN, RealVerl, ShapeOfVerl
from worker.tool import SandboxFusionTool

YAML = ROOT / "examples" / "verl" / "sandbox_fusion_tool_config.yaml"
REAL = importlib.util.find_spec("verl") is not None
VERSION = "0.9.1"
only_real = pytest.mark.skipif(not REAL, reason="verl is not installed: make conformance")


@pytest.fixture(params=["shape", pytest.param("verl", marks=only_real)])
def host(request: pytest.FixtureRequest) -> Any:
    return RealVerl() if request.param == "verl" else ShapeOfVerl()


@pytest.fixture
def tools(host: Any, working: Any) -> dict[str, Any]:
    return host.load(YAML)


@pytest.fixture
def call(host: Any, tools: dict[str, Any]) -> Any:
    def call(arguments: str, **more: Any) -> Any:
        return host.call(tools, "code_interpreter", arguments, **more)

    return call


def code(text: str, **more: Any) -> str:
    return json.dumps({"code": text, **more})


def test_the_registry_makes_our_tool_of_the_yaml(tools) -> None:
    (tool,) = tools.values()
    assert type(tool).__module__ == "worker.tool.tool"
    assert tool.tool_schema.function.parameters.required == ["code"]
    assert (tool.rate_limit, tool.num_workers) == (64, 128)


def test_every_example_is_loaded(host) -> None:
    names = {
        file.stem: [*host.load(file)] for file in sorted(YAML.parent.glob("*tool_config.yaml"))
    }
    assert names == {
        "sandbox_fusion_tool_config": ["code_interpreter"],
        "stateful_tool_config": ["python"],
    }


async def test_a_good_call_gives_its_output_and_no_reward(call) -> None:
    response, reward, _ = await call(code("print(1 + 2)", executes="True"))
    assert (response.text, reward) == ("3\n", None)


async def test_arguments_that_are_not_json_run_nothing(call, working) -> None:
    response, _, _ = await call('{"code": ')
    assert response.text.startswith("Invalid JSON in arguments for 'code_interpreter'")
    assert working.requests == 0


async def test_a_list_in_the_place_of_an_object_is_answered(call, working) -> None:
    response, reward, _ = await call("[1]")
    assert "must be a JSON object, not list" in response.text
    assert (reward, working.requests) == (None, 0)


async def test_an_unknown_language_is_answered(call, working) -> None:
    response, _, _ = await call(code("1", language="cobol"))
    assert response.text.startswith("Error: the language 'cobol' is unknown")
    assert working.requests == 0


async def test_a_time_limit_is_answered_with_what_was_printed(call) -> None:
    response, _, _ = await call(code("while True: pass", timeout=5))
    assert response.text == "begun\n\n[stopped at its time limit of 5 s]"


async def test_a_program_that_fails_shows_its_traceback(call) -> None:
    response, _, _ = await call(code("1/0"))
    assert response.text == TRACEBACK


async def test_a_tool_that_fails_masks_the_trajectory(call) -> None:
    agent_data = SimpleNamespace(request_id="r", extra_fields={})
    response, reward, metrics = await call(code("no sandbox"), agent_data=agent_data)
    assert response.text.startswith("The code could not be run")
    assert (reward, metrics["traj_masked"]) == (None, 1)
    assert agent_data.extra_fields["extras"]["traj_masked"] == 1


async def test_a_function_that_the_model_made_up_is_answered(host, tools) -> None:
    response, _, _ = await host.call(tools, "search", "{}")
    assert "Unknown function 'search'" in response.text


async def test_what_the_dataset_gives_at_create_arrives(call, tools, monkeypatch) -> None:
    (tool,) = tools.values()
    truths = []

    async def execute(instance_id: str, parameters: Any, **_: Any) -> Any:
        truths.append(tool._instance_dict[instance_id]["ground_truth"])
        return await type(tool).execute(tool, instance_id, parameters)

    monkeypatch.setattr(tool, "execute", execute)
    given = {"code_interpreter": {"create_kwargs": {"ground_truth": "3"}}}
    response, _, _ = await call(code("print(1 + 2)"), tools_kwargs=given)
    assert (truths, response.text) == (["3"], "3\n")


async def test_releasing_what_the_host_released_is_harmless(call, tools, monkeypatch) -> None:
    (tool,) = tools.values()
    released = []

    async def release(instance_id: str) -> None:
        released.append(instance_id)
        await type(tool).release(tool, instance_id)
        await type(tool).release(tool, instance_id)

    monkeypatch.setattr(tool, "release", release)
    response, _, _ = await call(code("print(1 + 2)"))
    assert (len(released), response.text, tool._instance_dict) == (1, "3\n", {})


async def test_sixty_four_calls_in_parallel_each_get_their_own(call, working) -> None:
    working.programs |= {f"print({n})": Answer.ok(f"{n}\n", seconds=0.01) for n in range(64)}
    answers = await asyncio.gather(*(call(code(f"print({n})")) for n in range(64)))
    assert [response.text for response, _, _ in answers] == [f"{n}\n" for n in range(64)]
    assert working.peak <= 10


async def test_the_function_form_is_loaded_by_its_path_and_called(host, working) -> None:
    tools = host.load_function(ROOT / "worker" / "tool" / "function_form.py")
    response, reward, _ = await host.call(
        tools, "code_interpreter", code("print(1 + 2)", executes="True")
    )
    assert (response.text, reward) == ("3\n", 0.0)
    response, _, _ = await host.call(tools, "code_interpreter", "{}")
    assert "`code` is missing" in response.text


@pytest.fixture
def young_verl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A package `verl` without the module that 0.8 removed."""
    (tmp_path / "verl" / "tools").mkdir(parents=True)
    for folder in ("verl", "verl/tools"):
        (tmp_path / folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("verl")


@pytest.mark.usefixtures("young_verl")
@pytest.mark.parametrize(("asked", "there"), [("", False), ("0", False), ("1", True)])
def test_the_old_path_is_back_where_it_is_asked_for(asked, there, monkeypatch) -> None:
    from worker.tool import verl_plugin

    monkeypatch.setenv("PENSTOCK_VERL_TOOL_PATH", asked)
    monkeypatch.setitem(sys.modules, verl_plugin.OLD_PATH, None)
    del sys.modules[verl_plugin.OLD_PATH]
    assert verl_plugin.restore() is there
    assert verl_plugin.restore() is there
    if there:
        old = importlib.import_module(verl_plugin.OLD_PATH)
        assert old.SandboxFusionTool.__module__ == "worker.tool.tool"
        assert old.init_execution_pool(1).rate_limit_worker.rate_limit == 10


@pytest.mark.usefixtures("young_verl")
def test_a_verl_that_has_the_module_keeps_it(monkeypatch) -> None:
    from worker.tool import verl_plugin

    monkeypatch.setenv("PENSTOCK_VERL_TOOL_PATH", "1")
    theirs = ModuleType(verl_plugin.OLD_PATH)
    monkeypatch.setitem(sys.modules, verl_plugin.OLD_PATH, theirs)
    assert verl_plugin.restore() is False
    assert sys.modules[verl_plugin.OLD_PATH] is theirs


def test_the_plug_in_is_where_verl_looks_for_it() -> None:
    (point,) = (
        point
        for point in importlib.metadata.entry_points(group="verl.plugins")
        if point.value.startswith("worker.")
    )
    assert point.load().__name__ == "worker.tool.verl_plugin"


@only_real
def test_it_is_the_version_that_is_documented() -> None:
    assert importlib.metadata.version("verl") == VERSION


@only_real
def test_the_tool_is_verls_own_kind_of_tool() -> None:
    said = in_a_new_process(
        "import verl.tools.base_tool as base\n"
        "from worker.tool import SandboxFusionTool\n"
        "print(issubclass(SandboxFusionTool, base.BaseTool),"
        " hasattr(SandboxFusionTool.execute, '__wrapped__'))"
    )
    assert said == "True True"


@only_real
@pytest.mark.parametrize("asked", ["0", "1"])
def test_verl_itself_loads_the_plug_in(asked) -> None:
    said = in_a_new_process(
        "import verl\n"
        "try:\n"
        "    from verl.tools.sandbox_fusion_tools import SandboxFusionTool\n"
        "    print(SandboxFusionTool.__module__)\n"
        "except ModuleNotFoundError as missing:\n"
        "    print(missing)",
        PENSTOCK_VERL_TOOL_PATH=asked,
    )
    removed = "No module named 'verl.tools.sandbox_fusion_tools'"
    assert said == ("worker.tool.tool" if asked == "1" else removed)


async def test_the_example_masks_every_token_of_a_failed_trajectory(host, tools) -> None:
    good = await host.play(tools, [code("print(1 + 2)"), code("1/0")])
    assert good.response_mask == [*SAID, *SHOWN, *SAID, *SHOWN, *SAID]
    assert not good.extra_fields.get("extras")
    lost = await host.play(tools, [code("no sandbox"), code("print(1 + 2)")])
    assert lost.response_mask == [0] * len(good.response_mask)
    assert lost.extra_fields["extras"]["traj_masked"] == 1
    assert lost.extra_fields["extras"]["traj_exit_reason"].startswith("infrastructure: ")


async def test_a_session_ends_with_the_hosts_trajectory(host, working, monkeypatch) -> None:
    over: list[str] = []
    monkeypatch.setattr("worker.tool.sessions._end", lambda _, name: over.append(name))
    tools = {"code_interpreter": SandboxFusionTool({"stateful": True})}
    await host.play(tools, [code("print(1 + 2)"), code("1/0")])
    gc.collect()
    await asyncio.to_thread(until, lambda: over, "the end of its session")
    assert len(over) == 1


def options_of_the_training_run() -> dict[str, str]:
    """What the example's script tells verl."""
    run = subprocess.run(
        ["sh", str(YAML.parent / "train.sh"), "trainer.nnodes=2"],
        env=os.environ | {"PYTHON": "echo", "PENSTOCK_REDIS_URL": "redis://redis:6379"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    module, *options = run.stdout.split()[1:]
    assert module == "verl.trainer.main_ppo"
    return dict(option.split("=", 1) for option in options)


def test_the_training_run_names_what_is_there() -> None:
    options = options_of_the_training_run()
    rollout = "actor_rollout_ref.rollout"
    assert options[f"{rollout}.multi_turn.tool_config_path"] == str(YAML)
    assert options["trainer.nnodes"] == "2"
    loops = yaml.safe_load(Path(options[f"{rollout}.agent.agent_loop_config_path"]).read_text())
    targets = {loop["name"]: loop["_target_"] for loop in loops}
    assert options[f"{rollout}.agent.default_agent_loop"] in targets
    assert targets.keys() >= {
        "tool_agent",
        "single_turn_agent",
    }  # a sample that names one is masked
    for target in targets.values():
        module, _, name = target.rpartition(".")
        assert f"class {name}(" in (YAML.parent / f"{module}.py").read_text()


@only_real
def test_verl_takes_the_options_of_the_training_run() -> None:
    RealVerl()  # with its stubs
    hydra = importlib.import_module("hydra")
    options = options_of_the_training_run()
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        config = hydra.compose(
            "ppo_trainer", overrides=[f"{key}={value}" for key, value in options.items()]
        )
    rollout = config.actor_rollout_ref.rollout
    assert rollout.multi_turn.tool_config_path == str(YAML)
    assert rollout.agent.default_agent_loop == "masking_tool_agent"
    assert config.algorithm.adv_estimator == "masked_grpo"
    assert config.data.tool_config_path == str(YAML)  # so that prompts are counted with schemas


def in_a_new_process(program: str, **environment: str) -> str:
    prelude = "from tests.worker.tool import verl_stubs; verl_stubs.install()\n"
    run = subprocess.run(
        [sys.executable, "-c", prelude + program],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return run.stdout.strip().splitlines()[-1]
