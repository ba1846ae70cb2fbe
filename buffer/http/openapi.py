"""What the OpenAPI document says beyond what FastAPI reads off the functions."""

import copy
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ITEM = {
    "type": "object",
    "required": ["instance_id"],
    "properties": {
        "instance_id": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}]},
        "uid": {"type": ["string", "integer", "null"]},
        "messages": {"type": "array"},
        "reward": {},
        "round_number": {"type": ["integer", "null"], "minimum": 0},
        "extra_info": {},
    },
}
_ENVELOPE = {
    "type": "object",
    "required": ["success", "message"],
    "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "data": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}
_REFUSALS = {
    "400": "Not what is asked for; the message says why.",
    "401": "A bearer token is needed.",
    "404": "No such task in this run.",
    "409": "The batch is no longer leased.",
    "413": "Too large.",
    "422": "A parameter is out of range.",
    "429": "The buffer is full; see Retry-After.",
    "500": "The server failed.",
    "503": "Redis does not answer; see Retry-After.",
}
_TASK = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"}
_ID = {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 250}, {"type": "integer"}]}


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
        "skip_instance_ids": {"type": "array", "items": _ID},
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


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


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
    schemas["Item"], schemas["Envelope"] = _ITEM, _ENVELOPE
    paths = document["paths"]
    for prefix in ("", "/tasks/{task}"):
        paths[f"{prefix}/buffer/write"] = {"post": _write(bool(prefix))}
        for path, schema, required in _BODIES:
            paths[prefix + path]["post"]["requestBody"] = _json(schema) | {"required": required}
    for path, methods in paths.items():
        if path.startswith("/tasks/{task}"):
            for operation in methods.values():
                operation["parameters"] = [_PATH]
    paths |= copy.deepcopy(_WATCHING)
    answer = _json({"$ref": "#/components/schemas/Envelope"})
    for methods in paths.values():
        for operation in methods.values():
            for status, said in _REFUSALS.items():
                operation["responses"][status] = {"description": said, **answer}
    paths["/v1/tasks/{task}/take"]["post"]["responses"]["204"] = {"description": "Nothing ready."}
    return document


# Answered before the routes, by the guard.
_WATCHING: dict[str, Any] = {
    "/healthz": {
        "get": {
            "tags": ["watching"],
            "summary": "200 when Redis answers, else 503",
            "operationId": "healthz",
            "responses": {"200": {"description": "Redis answers.", **_json({"type": "object"})}},
        }
    },
    "/metrics": {
        "get": {
            "tags": ["watching"],
            "summary": "Figures for Prometheus",
            "operationId": "metrics",
            "responses": {"200": {"description": "Prometheus' text format.", "content": {
                "text/plain": {"schema": {"type": "string"}}}}},
        }
    },
}  # fmt: skip
_PATH = {"name": "task", "in": "path", "required": True, "schema": _TASK}


def _write(of_task: bool) -> dict[str, Any]:
    return {
        "tags": ["slime"],
        "summary": "Write one item",
        "operationId": "write_task_item" if of_task else "write_item",
        "responses": {"200": {"description": "Stored, or counted: see X-Penstock-Outcome."}},
    }
