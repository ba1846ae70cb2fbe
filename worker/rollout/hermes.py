"""Tools in plain text, as Hermes and Qwen models write them.

    <tool_call>
    {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    </tool_call>

It is for servers that pass on what the model writes. These models were trained on the words of `#
Tools`, which their own chat templates render.
"""

import json
import re
from collections.abc import Iterable
from typing import Any

from worker.rollout.calls import Call, Schemas, checked, encodable, read_call
from worker.rollout.request import Message
from worker.tool.schemas import OpenAIFunctionToolSchema

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THOUGHT = "</think>"
_MARKS = re.compile(
    r"<\|python_tag\|>|\[TOOL_CALLS\]|<\|tool_calls?_(?:section_)?begin\|>|<minimax:tool_call>"
    r"|<｜tool▁calls?▁begin｜>|<｜DSML｜function_calls>|<\|channel\|>commentary to=functions"
    r"|<tool_call>\s*(?:<function=|[\w.-]+\s*<arg_key>)"
)  # of Llama, Mistral, Kimi, MiniMax, DeepSeek, gpt-oss; of Qwen3-Coder and GLM
_BARE = re.compile(r'\s*[\[{]{1,2}\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([\w.-]+)"')
_BLANK = re.compile(r"\s*")
_END = re.compile(r"\s*</tool_call>")
_DECODER = json.JSONDecoder(strict=False)  # models write line ends in their strings

_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{schemas}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def calls_in(text: str, schemas: Schemas) -> list[Call]:
    """The calls in what a model wrote, in order; the text between them stays as it is.

    One that it only thought of is none: the end of its thoughts comes behind it.
    """
    found: list[Call] = []
    end = 0
    while (place := text.find(_OPEN, end)) >= 0:
        if text.find(_THOUGHT, end, place) >= 0:
            found.clear()
        call, end = _call_at(text, place + len(_OPEN), schemas)
        found.append(call)
    return found if text.find(_THOUGHT, end) < 0 else []


def unparsed_in(text: str, schemas: Schemas) -> bool:
    """Whether a model wrote a call, behind its thoughts, in a form that only its server's parser
    reads. It was trained on that form, and could not follow advice to write another."""
    said = text.rpartition(_THOUGHT)[2]
    if _MARKS.search(said):
        return True
    bare = _BARE.match(said)
    return bare is not None and bare[1] in schemas


def _call_at(text: str, start: int, schemas: Schemas) -> tuple[Call, int]:
    # Read as JSON and not up to the next tag: the code in it may contain the tag.
    begin = _BLANK.match(text, start)
    assert begin is not None  # noqa: S101 - it matches nothing, too
    try:
        read, end = _DECODER.raw_decode(text, begin.end())
    except (ValueError, RecursionError) as wrong:
        return _unreadable(str(wrong)), _end_of(text, start)
    if closing := _END.match(text, end):
        return _named(read, schemas), closing.end()
    # The last closing tag may be missing: servers cut it off where it is a stop string.
    rest = text[end:].lstrip()
    if rest and not rest.startswith(_OPEN):
        return _unreadable("something follows the JSON object"), _end_of(text, end)
    return _named(read, schemas), end


def _named(read: Any, schemas: Schemas) -> Call:
    if not isinstance(read, dict) or not isinstance(read.get("name"), str):
        return _unreadable("a call is a JSON object with a name and arguments")
    arguments = read.get("arguments", {})
    if isinstance(arguments, str):
        return read_call(read["name"], arguments, "", schemas)
    return checked(read["name"], arguments, "", schemas)


def _unreadable(why: str) -> Call:
    form = f'{_OPEN}{{"name": <function-name>, "arguments": <args-json-object>}}{_CLOSE}'
    return Call("", {}, problem=f"this tool call cannot be read: {why}; write {form}")


def _end_of(text: str, start: int) -> int:
    closing = text.find(_CLOSE, start)
    return closing + len(_CLOSE) if closing >= 0 else len(text)


def tools_section(schemas: Iterable[OpenAIFunctionToolSchema]) -> str:
    """The part of a system message that describes the tools."""
    lines = (json.dumps(schema.model_dump(), ensure_ascii=False) for schema in schemas)
    return _TOOLS.format(schemas=encodable("\n".join(lines)))


def with_tools(messages: list[Message], schemas: list[OpenAIFunctionToolSchema]) -> list[Message]:
    """The conversation, its system message followed by the tools."""
    if not schemas:
        return messages
    section = tools_section(schemas)
    first, *rest = messages
    if first["role"] != "system":
        return [{"role": "system", "content": section}, *messages]
    said = first.get("content") or ""
    if isinstance(said, list):
        return [{**first, "content": [*said, {"type": "text", "text": section}]}, *rest]
    return [{**first, "content": f"{said}\n\n{section}".lstrip()}, *rest]


def call_text(name: str, arguments: str) -> str:
    """A call that the server had read, in the text it stands for."""
    return f'{_OPEN}\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n{_CLOSE}'
