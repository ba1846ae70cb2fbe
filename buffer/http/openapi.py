"""What the OpenAPI document says beyond what FastAPI reads off the functions."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from buffer.item import HIGHEST_ROUND, LONGEST_ID
from ground.openapi import REFUSALS, add_shared, in_json

_TEXT = {"type": "string", "maxLength": LONGEST_ID}
_ID = {"anyOf": [{**_TEXT, "minLength": 1}, {"type": "integer"}]}
_VERSION = {"type": ["integer", "null"], "minimum": -1, "maximum": 2**31}
_TOKENS = {"type": "integer", "minimum": 0, "maximum": 2**53}
_SPAN = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "prefixItems": [_TOKENS, {**_TOKENS, "minimum": -1, "maximum": 2**31}],
}
_ITEM = {
    "type": "object",
    "required": ["instance_id"],
    "properties": {
        "instance_id": _ID,
        "uid": {"anyOf": [_TEXT, {"type": ["integer", "null"]}]},
        "messages": {"description": "A list; what is none is kept, and filter_item leaves it out."},
        "reward": {},
        "round_number": {"type": ["integer", "null"], "minimum": 0, "maximum": HIGHEST_ROUND - 1},
        "extra_info": {},
        "slot": {"description": "The slot it was made under, with `fence`."},
        "fence": {},
        "version_start": _VERSION,
        "version_end": _VERSION,
        "versions": {
            "description": "Run lengths, or for several rows of tokens a list of them per row.",
            "anyOf": [
                {"type": "null"},
                {"type": "array", "items": _SPAN},
                {"type": "array", "items": {"type": "array", "items": _SPAN}},
            ],
        },
        "weight_versions": {},
    },
}
_REFUSALS = {
    **REFUSALS,
    "404": "No such task in this run.",
    "409": "The batch is no longer leased.",
    "410": "The slot is over, or the trainer or the rollout was replaced.",
    "413": "Too large.",
    "422": "A parameter is out of range.",
    "429": "The buffer is full; see Retry-After.",
    "500": "The server failed.",
    "503": "Redis does not answer, or the server ends; see Retry-After.",
}
_TASK = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"}


def _number(least: int, most: int) -> dict[str, Any]:
    """slime's clients send some numbers as strings."""
    text = {"type": "string", "pattern": "^[1-9][0-9]{0,4}$"}
    return {"anyOf": [{"type": "integer", "minimum": least, "maximum": most}, text]}


_START = {
    "type": "object",
    "required": ["task_type", "num_repeat_per_sample"],
    "properties": {
        "task_type": _TASK,
        "num_repeat_per_sample": _number(1, 1_000_000),
        "skip_instance_ids": {"type": ["array", "null"], "items": _ID},
    },
}
_SIZE = {"type": "object", "properties": {"batch_size": _number(-1, 2**53)}}
_READ = {
    "type": "object",
    "required": ["batch_size", "timeout"],
    "properties": {
        "batch_size": _number(-1, 2**53),
        "timeout": {"type": "number", "minimum": 0},
        "wait": {"type": "boolean"},
    },
}

# Path, method, body. Upstream's clients send a body with GET /buffer/peek; OpenAPI knows none.
_BODIES: tuple[tuple[str, dict[str, Any], bool], ...] = (
    ("/buffer/write", {"$ref": "#/components/schemas/Item"}, True),
    ("/start_rollout", _START, True),
    ("/get_rollout_data", {"anyOf": [_SIZE, {"not": {"type": "object"}}]}, False),
    ("/buffer/read", _READ, True),
)


def described(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The document, made once."""
    made: dict[str, Any] = {}

    def document() -> dict[str, Any]:
        if not made:
            made.update(_document(app))
        return made

    return document


def _document(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version="1", routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Item"] = _ITEM
    paths = document["paths"]
    for prefix in ("", "/tasks/{task}"):
        paths[f"{prefix}/buffer/write"] = {"post": _write(bool(prefix))}
        for path, schema, required in _BODIES:
            paths[prefix + path]["post"]["requestBody"] = in_json(schema) | {"required": required}
    for path, methods in paths.items():
        if path.startswith("/tasks/{task}"):
            for operation in methods.values():
                operation["parameters"] = [_PATH]
    add_shared(document, _REFUSALS)
    paths["/v1/tasks/{task}/take"]["post"]["responses"]["204"] = {"description": "Nothing ready."}
    return document


_PATH = {"name": "task", "in": "path", "required": True, "schema": _TASK}


def _write(of_task: bool) -> dict[str, Any]:
    return {
        "tags": ["slime"],
        "summary": "Write one item",
        "operationId": "write_task_item" if of_task else "write_item",
        "responses": {"200": {"description": "Stored, or counted: see X-Penstock-Outcome."}},
    }
