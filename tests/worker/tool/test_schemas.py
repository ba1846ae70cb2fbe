"""The tool protocol: dumps are verl's, and what models write is read or refused."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from worker.tool import (
    OpenAIFunctionCallSchema,
    OpenAIFunctionParsedSchema,
    OpenAIFunctionToolSchema,
    SandboxFusionTool,
    ToolResponse,
)
from worker.tool.schemas import CODE_INTERPRETER

# As the document of verl's tool shows it in a prompt.
SAMPLE = (
    '{"type": "function", "function": {"name": "code_interpreter", "description": "A tool for'
    ' executing code.", "parameters": {"type": "object", "properties": {"code": {"type": "string",'
    ' "description": "The code to execute.", "enum": null}}, "required": ["code"]},'
    ' "strict": false}}'
)


def test_tools_registration() -> None:
    """A tool is made of its YAML entry, has one schema, and needs no Redis to be made."""
    tools = [SandboxFusionTool(config={"type": "native", "num_workers": 4}, tool_schema=None)]
    assert [tool.name for tool in tools] == ["code_interpreter"]
    schema = tools[0].get_openai_tool_schema()
    assert isinstance(schema, OpenAIFunctionToolSchema)
    assert schema is tools[0].tool_schema


def test_the_schemas_dump_is_the_samples() -> None:
    assert json.dumps(CODE_INTERPRETER.model_dump()) == SAMPLE
    assert OpenAIFunctionToolSchema.model_validate_json(SAMPLE) == CODE_INTERPRETER


def test_keywords_of_json_schema_that_have_no_field_are_kept() -> None:
    given = json.loads(SAMPLE)
    given["function"]["parameters"]["properties"]["code"]["default"] = "pass"
    dumped = OpenAIFunctionToolSchema.model_validate(given).model_dump()
    assert dumped == given


def test_a_schema_may_be_given_as_an_object_or_as_json() -> None:
    renamed = CODE_INTERPRETER.model_copy(deep=True)
    renamed.function.name = "python"
    assert SandboxFusionTool({}, renamed).tool_schema is renamed
    assert SandboxFusionTool({}, renamed.model_dump()).name == "python"
    assert SandboxFusionTool({}).tool_schema == CODE_INTERPRETER

    class Renamed(SandboxFusionTool):
        def get_openai_tool_schema(self):
            return renamed

    assert Renamed({}).name == "python"
    foreign = SimpleNamespace(function=SimpleNamespace(name="theirs"))
    assert SandboxFusionTool({}, foreign).name == "theirs"


@pytest.mark.parametrize("arguments", ["[1]", "{", "3", "[" * 100_000, '"code"', ""])
def test_arguments_that_are_no_object_are_a_decode_error(arguments: str) -> None:
    parsed = OpenAIFunctionParsedSchema(name="f", arguments=arguments)
    call, wrong = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(parsed)
    assert (call.arguments, wrong) == ({}, True)


def test_arguments_that_are_an_object_are_read() -> None:
    parsed = OpenAIFunctionParsedSchema(name="f", arguments='{"code": "1"}')
    call, wrong = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(parsed)
    assert (call.name, call.arguments, wrong) == ("f", {"code": "1"}, False)


def test_a_response_holds_lists_of_images_and_says_what_it_is() -> None:
    assert ToolResponse().is_empty()
    assert ToolResponse(text="1").is_text_only()
    assert not ToolResponse(text="1", image=["i"]).is_text_only()
    with pytest.raises(ValidationError, match="wrap a single one"):
        ToolResponse(image="i")


def test_the_yaml_of_the_example_is_what_the_tool_takes() -> None:
    yaml = Path(__file__).parents[3] / "examples" / "verl" / "sandbox_fusion_tool_config.yaml"
    text = yaml.read_text()
    assert 'class_name: "worker.tool.SandboxFusionTool"' in text
    assert "type: native" in text  # without it verl's registry refuses the entry
