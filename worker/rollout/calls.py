"""Calls of tools as models write them, read and checked.

A call that cannot be run is not an exception: its `problem` is a sentence for the model,
which may then do better.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker.tool.schemas import OpenAIFunctionToolSchema

Schemas = Mapping[str, OpenAIFunctionToolSchema]


@dataclass(frozen=True)
class Call:
    """`id` is the server's; a call written as text has none."""

    name: str
    arguments: dict[str, Any]
    id: str = ""
    problem: str = ""


def encodable(text: str) -> str:
    """The text less what UTF-8 has no bytes for, lone surrogates: no server takes them."""
    return text.encode("utf-8", "replace").decode()


def read_arguments(text: str) -> Any:
    """The arguments in a text. Some models and servers write it as JSON twice over."""
    read = json.loads(text, strict=False)
    if isinstance(read, str):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(read, strict=False)
    return read


def read_call(name: str, arguments: str, id: str, schemas: Schemas) -> Call:
    """A call whose arguments are text, as the server passes them on."""
    try:
        read = read_arguments(arguments or "{}")
    except (ValueError, RecursionError) as wrong:
        return Call(
            name,
            {},
            id,
            f"the arguments of {name} are not JSON ({wrong}); {_example(name, schemas)}",
        )
    return checked(name, read, id, schemas)


def checked(name: str, arguments: Any, id: str, schemas: Schemas) -> Call:
    """A call that names a tool and has what this tool requires, or says what is wrong."""
    call = Call(name, arguments if isinstance(arguments, dict) else {}, id)
    if name not in schemas:
        there = ", ".join(schemas) or "none"
        return replace(call, problem=f"there is no tool {name!r}; the tools are: {there}")
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        return replace(
            call,
            problem=f"the arguments of {name} must be a JSON object, not a {kind};"
            f" {_example(name, schemas)}",
        )
    required = schemas[name].function.parameters.required
    if missing := [field for field in required if field not in arguments]:
        return replace(
            call, problem=f"{name} needs {', '.join(missing)}; {_example(name, schemas)}"
        )
    return call


def _example(name: str, schemas: Schemas) -> str:
    if name not in schemas:
        return f"the tools are: {', '.join(schemas) or 'none'}"
    fields = schemas[name].function.parameters.required
    return f"write for example {json.dumps(dict.fromkeys(fields, '...'))}"
