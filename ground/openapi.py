"""The parts that the OpenAPI documents of all services share: the guard's paths and answers."""

import copy
import inspect
from collections.abc import Callable
from typing import Any

ENVELOPE = {
    "type": "object",
    "required": ["success", "message"],
    "properties": {
        "success": {"type": "boolean"},
        "message": {"type": "string"},
        "data": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
}
REFUSALS = {
    "400": "Not what is asked for; the message says why.",
    "401": "A bearer token is needed.",
    "403": "A page of another site asked, or it is not allowed here.",
    "415": "A change must be JSON, and say so.",
    "421": "The request was meant for another host.",
    "503": "It cannot be done now, or the server ends.",
}
"""Which each operation may meet, with an envelope that says why."""


def in_json(schema: dict[str, Any]) -> dict[str, Any]:
    """The content of a body of JSON."""
    return {"content": {"application/json": {"schema": schema}}}


def operation(
    handler: Callable[..., Any], tag: str, answer: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """An operation whose summary is the first line of what its handler says of itself."""
    summary, _, rest = (inspect.getdoc(handler) or "").partition("\n")
    described = {"description": rest.strip()} if rest.strip() else {}
    return {
        "tags": [tag],
        "summary": summary,
        **described,
        "operationId": handler.__name__.strip("_"),
        "responses": {"200": {"description": "Done.", **answer}},
        **more,
    }


def document(title: str, paths: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """A whole document of these operations, and of what every service has."""
    made: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": paths,
        "components": {"schemas": dict(schemas)},
    }
    add_shared(made, REFUSALS)
    return made


def add_shared(document: dict[str, Any], refusals: dict[str, str]) -> None:
    """Add the paths that the guard answers, and to each operation its refusals, in envelopes."""
    document["paths"] |= copy.deepcopy(_WATCHING)
    document["components"]["schemas"]["Envelope"] = ENVELOPE
    answer = in_json({"$ref": "#/components/schemas/Envelope"})
    for methods in document["paths"].values():
        for found in methods.values():
            for status, said in refusals.items():
                found["responses"].setdefault(status, {"description": said, **answer})


_UNWELL = {"description": "It is not well; the reason is in the answer."}
_WATCHING: dict[str, Any] = {
    "/livez": {
        "get": {
            "tags": ["watching"],
            "summary": "200 while the process runs, whatever Redis does",
            "operationId": "livez",
            "responses": {
                "200": {"description": "It runs.", **in_json({"type": "object"})},
                "503": {
                    "description": "It is stuck, and only a restart helps.",
                    **in_json({"type": "object"}),
                },
            },
        }
    },
    "/healthz": {
        "get": {
            "tags": ["watching"],
            "summary": "200 when it is well, else 503",
            "operationId": "healthz",
            "responses": {
                "200": {"description": "It is well.", **in_json({"type": "object"})},
                "503": {**_UNWELL, **in_json({"type": "object"})},
            },
        }
    },
    "/metrics": {
        "get": {
            "tags": ["watching"],
            "summary": "Figures for Prometheus",
            "operationId": "metrics",
            "responses": {
                status: {"description": said, "content": {
                    "text/plain": {"schema": {"type": "string"}}}}
                for status, said in (("200", "Prometheus' text format."),
                                     ("503", _UNWELL["description"]))
            },
        }
    },
}  # fmt: skip
