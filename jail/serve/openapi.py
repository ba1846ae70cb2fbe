"""The OpenAPI document: what requests may hold, from the models that read them."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel

from ground.openapi import document, in_json, operation
from jail import languages
from jail.serve.online_judge import Evaluate, GetPrompts, Submit
from jail.serve.requests import RunCode, RunJupyter

_BODIES: dict[str, type[BaseModel]] = {
    "/run_code": RunCode,
    "/run_jupyter": RunJupyter,
    "/submit": Submit,
    "/get_prompts": GetPrompts,
    "/common_evaluate": Evaluate,
    "/common_evaluate_batch": Evaluate,
}
_ANSWERS = {"/run_code": "Outcome", "/run_jupyter": "Outcome"}
_OUTCOME = {
    "type": "object",
    "required": ["status", "message"],
    "properties": {
        "status": {"enum": ["Success", "Failed", "SandboxError"]},
        "message": {"type": "string"},
        "files": {"type": "object", "additionalProperties": {"type": "string"}},
        "isolation": {"type": "string"},
    },
}
_JUDGED = {
    "type": "object",
    "required": ["id", "accepted", "tests"],
    "properties": {
        "accepted": {"type": "boolean"},
        "extracted_code": {"type": "string"},
        "full_code": {"type": "string"},
        "test_code": {"type": ["string", "null"]},
        "tests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["passed", "exec_info", "test_info"],
                "properties": {
                    "passed": {"type": "boolean"},
                    "exec_info": {"$ref": "#/components/schemas/Outcome"},
                },
            },
        },
    },
}
_RUNNING = {
    "413": "The body is longer than any may be.",
    "422": "A field is missing or wrong, or the language is not here; `detail` says which.",
    "504": "There is no room, or the server ends; send it again.",
}


def described(
    routes: Mapping[str, Mapping[str, Callable[..., Any]]], lacking: Collection[str]
) -> dict[str, Any]:
    """The document of these routes, in a sandbox whose interpreter lacks these modules."""
    paths = {
        path: {method.lower(): _operation(path, handler) for method, handler in methods.items()}
        for path, methods in routes.items()
    }
    schemas: dict[str, Any] = {}
    for model in _BODIES.values():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    schemas["RunCode"]["properties"]["language"]["enum"] = sorted(languages.installed(lacking))
    return document("Penstock sandbox", paths, schemas | {"Outcome": _OUTCOME, "Judged": _JUDGED})


def _operation(path: str, handler: Callable[..., Any]) -> dict[str, Any]:
    model = _BODIES.get(path)
    if model is None:
        return operation(handler, "sandbox", in_json({}))
    answer = _ANSWERS.get(path, "Judged")
    shape = (
        {"type": "array"} if path == "/get_prompts" else {"$ref": f"#/components/schemas/{answer}"}
    )
    found = operation(handler, "sandbox", in_json(shape))
    body = in_json({"$ref": f"#/components/schemas/{model.__name__}"})
    found["requestBody"] = {"required": True, **body}
    detail = in_json({"type": "object", "required": ["detail"]})
    found["responses"] |= {
        status: {"description": said, **detail} for status, said in _RUNNING.items()
    }
    return found
