"""The OpenAPI document says more here than FastAPI reads off the functions."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from buffer.http.bodies import MODELS, TASK
from ground.openapi import REFUSALS, add_shared

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
_PATH = {
    "name": "task", "in": "path", "required": True, "schema": {"type": "string", "pattern": TASK},
}  # fmt: skip


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
    _, bodies = models_json_schema(
        [(model, "validation") for model in MODELS], ref_template="#/components/schemas/{model}"
    )
    schemas |= bodies["$defs"]
    for path, methods in document["paths"].items():
        if path.startswith("/tasks/{task}"):  # one endpoint with and without it
            for operation in methods.values():
                operation["parameters"] = [_PATH]
    add_shared(document, _REFUSALS)
    take = document["paths"]["/v1/tasks/{task}/take"]["post"]
    take["responses"]["204"] = {"description": "Nothing ready."}
    return document
