"""Requests made from the declared fields of both dialects: none breaks the gateway, and each is
refused in its dialect's own shape."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from pydantic import BaseModel

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.dialects.chat import ChatBody
from gateway.dialects.messages import CountBody, MessagesBody
from tests.gateway.fleet import Process
from tests.gateway.scripted.engine import Served
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import answered_or_refused
from tests.harness import fuzzing
from tests.harness.servers import until, url_of

CHAT, MESSAGES, COUNT = "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens"
BODIES: dict[str, type[BaseModel]] = {CHAT: ChatBody, MESSAGES: MessagesBody, COUNT: CountBody}
# What is generated says more than the schema: that a role calls no tools, for example.
STRICTER = "positive_data_acceptance,negative_data_rejection,unsupported_method,ignored_auth"

TEXT = some.text(max_size=20)
NUMBERS = some.integers() | some.floats(allow_nan=False, allow_infinity=False)
ODD = some.recursive(
    some.none() | some.booleans() | NUMBERS | some.sampled_from(["", "\ud800", "\0", "<think>"]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
TYPES: dict[Any, some.SearchStrategy[Any]] = {
    str: TEXT | some.sampled_from(["text", "function", "user", "sh", "{}", "tool_use", "image"]),
    int: some.integers(1, 50) | some.integers(), float: NUMBERS, bool: some.booleans(),
    NoneType: some.none(), Any: ODD,
}  # fmt: skip


def values(kind: Any) -> some.SearchStrategy[Any]:
    """Values of a declared type."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return bodies(kind)
    if origin is Annotated:
        return values(inner[0])
    if origin is Literal:
        return some.sampled_from(inner)
    if origin in (Union, UnionType):
        return some.one_of(*map(values, inner))
    if origin is list:
        return some.lists(values(inner[0]), max_size=3)
    if origin is dict:
        return some.dictionaries(TEXT, ODD, max_size=3)
    return TYPES[kind]


def bodies(model: type[BaseModel]) -> some.SearchStrategy[dict[str, Any]]:
    """Objects with these fields: most of their types, some of none, and some left out."""
    needed = {name: values(field.annotation) for name, field in model.model_fields.items()
              if field.is_required()}  # fmt: skip
    others = {name: values(field.annotation) | ODD for name, field in model.model_fields.items()
              if name not in needed}  # fmt: skip
    return some.fixed_dictionaries(needed, optional=others | {"more": ODD})


@dataclass
class Fuzzed:
    """A gateway, and one session in it."""

    url: str
    key: str
    sid: str
    engine: ScriptedVllm

    def states(self) -> list[str]:
        """The states of its calls."""
        shown = httpx.get(f"{self.url}/tasks/math/sessions/{self.sid}", timeout=100).json()
        return [call["state"] for call in shown["calls"]]

    def nothing_is_half_committed(self) -> None:
        """Each sampled answer is a call that is done, and no other call is."""
        until(lambda: "open" not in self.states(), "the note of a call that broke")
        states = self.states()
        assert states.count("done") == len(self.engine.log)
        assert set(states) <= {"done", "broken"}  # broken: longer than the model takes


async def configured(redis: ground.Client) -> None:
    """Make the task."""
    buffer = RolloutBuffer(redis, "math", TaskConfig(group_size=1, dialect="v1"))
    await buffer.config()
    await buffer.aclose()


@pytest.fixture
def fuzzed(real_redis: ground.Client, tmp_path: Path) -> Iterator[Fuzzed]:
    asyncio.run(configured(real_redis))
    engine = ScriptedVllm(max_model_len=2000)
    with Served(engine) as served:
        gateway = Process(
            tmp_path, "-m", "penstock", "gateway", "serve", "--port", "{port}", "--engines",
            f"vllm={served.url}", healthy="/healthz", PENSTOCK_REDIS_URL=url_of(real_redis),
        )  # fmt: skip
        gateway.start()
        engine.log.clear()
        asked = {"uid": "u1", "instance_id": "i1"}
        opened = httpx.post(f"{gateway.url}/tasks/math/sessions", json=asked, timeout=100).json()
        yield Fuzzed(gateway.url, opened["key"], opened["session"], engine)
        gateway.kill()


def shape_of(path: str) -> dict[str, Any]:
    """The schema of a refusal."""
    inner = ["type", "message"] if path != CHAT else ["message", "type", "param", "code"]
    names = {name: {"type": ["string", "null"]} for name in inner}
    error = {"type": "object", "required": inner, "properties": names,
             "additionalProperties": False}  # fmt: skip
    outer = {"error": error} | ({} if path == CHAT else {"type": {"const": "error"}})
    return {"type": "object", "required": list(outer), "properties": outer,
            "additionalProperties": False}  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "examples", [40, pytest.param(3000, marks=pytest.mark.soak)], ids=["few", "many"]
)
@pytest.mark.parametrize("path", BODIES)
def test_no_request_of_declared_fields_breaks_a_dialect(
    fuzzed: Fuzzed, path: str, examples: int
) -> None:
    answers: list[int] = []

    with httpx.Client(timeout=20, headers={"authorization": f"Bearer {fuzzed.key}"}) as http:

        @settings(max_examples=examples, deadline=None, database=None,
                  suppress_health_check=list(HealthCheck))  # fmt: skip
        @given(bodies(BODIES[path]))
        def sent(body: dict[str, Any]) -> None:
            answer = http.post(fuzzed.url + path, content=json.dumps(body))
            answered_or_refused("chat" if path == CHAT else "messages", answer)
            answers.append(answer.status_code)

        sent()
    assert 400 in answers
    fuzzed.nothing_is_half_committed()


def document() -> dict[str, Any]:
    """The dialects as OpenAPI describes such servers; the gateway itself serves no such page."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, model in BODIES.items():
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= {f"{name}": made for name, made in schema.pop("$defs", {}).items()}
        refusal = {"content": {"application/json": {"schema": shape_of(path)}},
                   "description": "refused"}  # fmt: skip
        paths[path] = {
            "post": {
                "requestBody": {"required": True,
                                "content": {"application/json": {"schema": schema}}},
                "responses": {"200": {"description": "an answer"}, "4XX": refusal},
            }
        }  # fmt: skip
    return {
        "openapi": "3.1.0", "info": {"title": "agents", "version": "1"}, "paths": paths,
        "components": {"schemas": schemas},
    }  # fmt: skip


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("examples", "seeded"),
    [(3, fuzzing.SEEDED), pytest.param(300, (), marks=pytest.mark.soak)],
    ids=["few", "many"],
)
def test_schemathesis_finds_no_request_that_breaks_a_dialect(
    fuzzed: Fuzzed, tmp_path: Path, examples: int, seeded: tuple[str, ...]
) -> None:
    (tmp_path / "agents.json").write_text(json.dumps(document()))
    fuzzing.nothing_breaks(
        "agents.json", tmp_path, examples, "--url", fuzzed.url,
        "--header", f"Authorization: Bearer {fuzzed.key}", "--exclude-checks", STRICTER, *seeded,
    )  # fmt: skip
    fuzzed.nothing_is_half_committed()
