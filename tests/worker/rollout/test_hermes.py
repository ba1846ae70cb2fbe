"""Calls in text: read where they can be, explained where they cannot."""

import json

import pytest

from tests.worker.rollout.players import in_text, user
from worker.rollout.hermes import calls_in, tools_section, with_tools
from worker.tool.schemas import CODE_INTERPRETER

SCHEMAS = {"code_interpreter": CODE_INTERPRETER}


def programs(text: str) -> list[str]:
    calls = calls_in(text, SCHEMAS)
    assert [call.problem for call in calls] == [""] * len(calls)
    return [call.arguments["code"] for call in calls]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no call", []),
        (in_text("1"), ["1"]),
        (f"so {in_text('1')} and {in_text('2')} so", ["1", "2"]),
        (in_text("print('</tool_call>')"), ["print('</tool_call>')"]),
        (in_text("a\nb").replace("\\n", "\n"), ["a\nb"]),  # a line end within a string
        (in_text("1").removesuffix("</tool_call>"), ["1"]),  # cut off, as a stop string is
        (in_text("1").replace("</tool_call>", "") + in_text("2"), ["1", "2"]),
        (f"<think>\nnot closed {in_text('1')}", ["1"]),
        (f"<think>so {in_text('1')}?</think>\n{in_text('2')}", ["2"]),
        (f"so {in_text('1')}?</think>", []),
        (in_text("print('</think>')"), ["print('</think>')"]),
        (
            '<tool_call>{"name": "code_interpreter", "arguments": "{\\"code\\": \\"1\\"}"}'
            "</tool_call>",
            ["1"],
        ),
    ],
)
def test_what_is_read(text: str, found: list[str]) -> None:
    assert programs(text) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call></tool_call>", "this tool call cannot be read: Expecting value"),
        ('<tool_call>{"name": "code_interpreter", "arg', "cannot be read: Unterminated string"),
        ("<tool_call>" + "[" * 100_000, "this tool call cannot be read"),
        ("<tool_call>[1]</tool_call>", "a call is a JSON object with a name and arguments"),
        ('<tool_call>{"arguments": {}}</tool_call>', "a call is a JSON object with a name"),
        ('<tool_call>{"name": "x"} y</tool_call>', "something follows the JSON object"),
        ('<tool_call>{"name": "x"}</tool_call>', "there is no tool 'x'"),
        ('<tool_call>{"name": "code_interpreter"}</tool_call>', "code_interpreter needs code"),
        (
            '<tool_call>{"name": "code_interpreter", "arguments": 1}</tool_call>',
            "must be a JSON object, not a int",
        ),
        (
            '<tool_call>{"name": "code_interpreter", "arguments": "{"}</tool_call>',
            "the arguments of code_interpreter are not JSON",
        ),
    ],
)
def test_what_cannot_be_read_is_explained_and_hides_nothing(text: str, problem: str) -> None:
    first, *rest = calls_in(text, SCHEMAS)
    assert problem in first.problem
    assert rest == []
    if "</tool_call>" in text:
        broken, good = calls_in(text + in_text("1"), SCHEMAS)
        assert broken == first
        assert good.arguments == {"code": "1"}


def test_a_description_is_text_as_chat_templates_render_it() -> None:
    function = CODE_INTERPRETER.function.model_copy(update={"description": "执行代码 \ud800"})
    described = tools_section([CODE_INTERPRETER.model_copy(update={"function": function})])
    assert '"description": "执行代码 ?"' in described


def test_tools_follow_what_the_system_message_says() -> None:
    (system, _) = with_tools(
        [{"role": "system", "content": "Be brief."}, *user("x")], [CODE_INTERPRETER]
    )
    assert system["content"] == "Be brief.\n\n" + tools_section([CODE_INTERPRETER])
    alone, question = with_tools(user("x"), [CODE_INTERPRETER])
    assert alone == {"role": "system", "content": tools_section([CODE_INTERPRETER])}
    assert [question] == with_tools(user("x"), []) == user("x")
    part = {"type": "text", "text": "Be brief."}
    (of_parts,) = with_tools([{"role": "system", "content": [part]}], [CODE_INTERPRETER])
    assert of_parts["content"] == [
        part, {"type": "text", "text": tools_section([CODE_INTERPRETER])},
    ]  # fmt: skip


def test_a_tool_is_described_as_models_were_trained_to_read_it() -> None:
    described = json.loads(
        tools_section([CODE_INTERPRETER]).split("<tools>\n")[1].split("\n</tools>")[0]
    )
    assert described == {
        "type": "function",
        "function": {
            "name": "code_interpreter",
            "description": "A tool for executing code.",
            "parameters": {
                "type": "object",
                "properties": {
                    "code": {
                        "type": "string", "description": "The code to execute.", "enum": None,
                    }
                },
                "required": ["code"],
            },
            "strict": False,
        },
    }  # fmt: skip
