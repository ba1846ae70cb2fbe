"""The OpenAPI document, from the routes themselves."""

import re
from collections.abc import Iterable
from typing import Any

from starlette.routing import Route

from ground.openapi import document, in_json, operation
from penstock.fleet.groups import GROUP_STATES, WHY
from penstock.fleet.history import SPANS
from penstock.fleet.jobs import JOB_STATES
from worker.lifecycle.registry.records import STATES
from worker.outcomes import PROGRAM_OUTCOMES

_ROUND = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
_TEXT = {"type": "string"}
_WHOLE = {"type": "integer", "minimum": 0, "maximum": 999_999_999}
_PAGE = {"start": _WHOLE, "count": _WHOLE}
_RUN = {"run": {"type": "string"}}
_QUERIES: dict[str, dict[str, Any]] = {
    "/api/fleet": {"workers": _WHOLE},
    "/api/history": {"span": {"enum": [*SPANS]}},
    "/api/find": {"q": _TEXT},
    "/api/jobs": {
        "queue": _TEXT, "state": {"enum": [*JOB_STATES]},
        "outcome": {"enum": ["", *PROGRAM_OUTCOMES]},
        "worker": _TEXT, "find": _TEXT, **_PAGE,
    },
    "/api/workers": {"state": _TEXT, "queue": _TEXT, "find": _TEXT, **_PAGE},
    "/api/sandboxes": {"state": {"enum": ["", "failing", *STATES]}, "find": _TEXT, **_PAGE},
    "/api/groups": {
        "task": _TEXT, "state": {"enum": [*GROUP_STATES]}, "version": _WHOLE,
        "why": {"enum": ["", *WHY]},
        "least": {"type": "number"}, "most": {"type": "number"}, **_PAGE,
    },
    "/api/groups/{task}": {"instance_id": {"type": "string"}, "round": _ROUND},
}  # fmt: skip
_NUMBER = {"type": ["number", "null"], "exclusiveMinimum": 0}
_BODIES: dict[str, dict[str, Any]] = {
    "/api/gates/{name}": {
        "minProperties": 1,
        "properties": {
            "paused": {"type": "boolean"},
            "limit": {"type": ["integer", "null"], "minimum": 1},
            "rate": _NUMBER,
            "burst": {"type": ["integer", "null"], "minimum": 1},
        },
    },
    "/api/groups/{task}/requeue": {
        "required": ["instance_id"],
        "properties": {"instance_id": {"type": ["string", "integer"]}, "round": _ROUND},
    },
}
_BODIES["/api/queues/{name}"] = {
    "required": ["paused"],
    "properties": {"paused": {"type": "boolean"}},
}
_BODIES["/api/jobs"] = {
    "required": ["do", "ids"],
    "properties": {
        "do": {"enum": ["retry", "requeue", "cancel", "delete"]},
        "ids": {"type": "array", "minItems": 1, "maxItems": 500, "items": _TEXT},
    },
}
_KINDS = {"/": "text/html", "/static/{name}": "text/plain", "/api/events": "text/event-stream"}
_NOT_DONE = {"404": "There is nothing of that name.", "409": "It cannot be done as it stands."}


def described(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of these routes."""
    paths: dict[str, Any] = {}
    for route in routes:
        path = re.sub(r":\w+}", "}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(path, method, route)
    return document("Penstock monitor", paths, {})


def _operation(path: str, method: str, route: Route) -> dict[str, Any]:
    kind = _KINDS.get(path)
    answer = {"content": {kind: {"schema": {"type": "string"}}}} if kind else in_json({})
    found = operation(route.endpoint, "monitor", answer)
    found["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ] + [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in _queries(path, method).items()
    ]
    if method == "POST" and path in _BODIES:
        schema = {"type": "object", "additionalProperties": False, **_BODIES[path]}
        found["requestBody"] = {"required": True, **in_json(schema)}
    envelope = in_json({"$ref": "#/components/schemas/Envelope"})
    found["responses"] |= {
        status: {"description": said, **envelope} for status, said in _NOT_DONE.items()
    }
    return found


def _queries(path: str, method: str) -> dict[str, Any]:
    """Each call takes the name of a run."""
    own = _QUERIES.get(path, {}) if method == "GET" else {}
    return own | (_RUN if path.startswith("/api/") else {})
