"""verl as a tool sees it: the real one, and a stub of its shape for where verl is not installed.

tools = host.load(yaml)
response, reward, metrics = await host.call(tools, "code_interpreter", '{"code": "1"}')
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml

from tests.worker.tool import verl_stubs

LONGEST_RESPONSE = 256  # characters, verl's default
Tools = dict[str, Any]
Called = tuple[Any, Any, Any]  # response, reward, metrics


def load_file(file: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ShapeOfVerl:
    """The order of calls, the arguments and the traps of verl 0.9.1, told anew in few lines."""

    def load(self, config: Path) -> Tools:
        tools = {}
        for entry in yaml.safe_load(config.read_text())["tools"]:
            assert entry["config"]["type"] == "native"
            module, _, name = entry["class_name"].rpartition(".")
            made = getattr(importlib.import_module(module), name)(
                config=entry["config"], tool_schema=entry.get("tool_schema")
            )
            made.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
            tools[made.name] = made
        return tools

    def load_function(self, file: Path) -> dict[str, Any]:
        registry: dict[str, Any] = {}
        verl = ModuleType("verl.tools.function_tool")
        verl.function_tool = (  # type: ignore[attr-defined]
            lambda name, schema: lambda fn: registry.setdefault(name, fn)
        )
        with patch.dict(sys.modules, {verl.__name__: verl}):
            load_file(file, "_function_tools_of_a_test")
        return registry

    async def call(
        self,
        tools: Tools,
        name: str,
        arguments: str,
        tools_kwargs: Any = None,
        agent_data: Any = None,
    ) -> Called:
        def said(text: str) -> tuple[Any, float, dict[str, Any]]:
            return SimpleNamespace(text=text, image=None, video=None), 0.0, {}

        if name not in tools:
            return said(f"Unknown function '{name}'")
        try:
            read = json.loads(arguments)
        except (json.JSONDecodeError, TypeError) as wrong:
            return said(f"Invalid JSON in arguments for '{name}': {wrong}")
        tool, instance = tools[name], None
        try:
            if callable(tool):
                text, reward, metrics = await tool(**read)
                return SimpleNamespace(text=text, image=None, video=None), reward, metrics
            given = (tools_kwargs or {}).get(name, {})
            instance, _ = await tool.create(create_kwargs=given.get("create_kwargs", {}))
            response, reward, metrics = await tool.execute(instance, read, agent_data=agent_data)
        except Exception as wrong:  # noqa: BLE001 - as it is there
            return said(f"Error executing tool '{name}': {wrong}")
        finally:
            if instance:
                await tool.release(instance)
        text = response.text  # None here is a crash there, too
        if text and len(text) > LONGEST_RESPONSE:
            half = LONGEST_RESPONSE // 2
            text = f"{text[:half]}...(truncated)...{text[-half:]}"
        shown = SimpleNamespace(text=text, image=response.image, video=response.video)
        return shown, reward, metrics


class RealVerl:
    """verl as it is installed, its heavy dependencies stubbed where they are missing."""

    def __init__(self) -> None:
        verl_stubs.install()
        loop = importlib.import_module("verl.experimental.agent_loop.tool_agent_loop")
        self.agent_loop = loop.ToolAgentLoop
        self.function_call = loop.FunctionCall
        self.registry = importlib.import_module("verl.tools.tool_registry")

    def load(self, config: Path) -> dict[str, Any]:
        return self._by_name(self.registry.load_all_tools(str(config), None))

    def load_function(self, file: Path) -> dict[str, Any]:
        return self._by_name(self.registry.load_all_tools(None, str(file)))

    def _by_name(self, tools: list[Any]) -> dict[str, Any]:
        for tool in tools:  # as the agent loop does for the prompt
            assert tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)
        return {tool.name: tool for tool in tools}

    async def call(
        self,
        tools: Tools,
        name: str,
        arguments: str,
        tools_kwargs: Any = None,
        agent_data: Any = None,
    ) -> Called:
        loop = SimpleNamespace(
            tools=tools,
            max_tool_response_length=LONGEST_RESPONSE,
            tool_response_truncate_side="middle",
        )
        call = self.function_call(name=name, arguments=arguments)
        agent_data = agent_data or SimpleNamespace(request_id="r", extra_fields={})
        called: Called = await self.agent_loop._call_tool(
            loop, call, tools_kwargs or {}, agent_data
        )
        return called
