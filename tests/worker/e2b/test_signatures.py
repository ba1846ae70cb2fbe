"""Anybody may ask whose signature an address has: it costs one list, however many ask."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest
from starlette.requests import Request

from worker.e2b.problems import Problem
from worker.e2b.signatures import Signatures

LONG = 60.0


@dataclass
class Listed:
    """Boxes that count how often they are listed."""

    tokens: dict[str, str] = field(default_factory=dict)
    lists: int = 0

    async def living(self) -> AsyncIterator[Any]:
        self.lists += 1
        for name, token in dict(self.tokens).items():
            await asyncio.sleep(0)
            yield Info(name, {"e2b.token": token})


@dataclass
class Info:
    name: str
    tags: dict[str, str]


def request(signature: str, more: str = "") -> Request:
    query = f"path=/f&signature={quote(signature, safe='')}{more}".encode()
    return Request({"type": "http", "method": "GET", "query_string": query, "headers": []})


def signature(token: str, more: str = "") -> str:
    digest = hashlib.sha256(f"/f:read::{token}{more}".encode()).digest()
    return f"v1_{base64.b64encode(digest).decode().rstrip('=')}"


def searched(boxes: Listed) -> Signatures:
    return Signatures(boxes, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "x", "v1_", "v1_zz", "v2_" + "a" * 43, "v1_" + "a" * 44])
async def test_what_is_no_signature_is_refused_without_a_list(text: str) -> None:
    boxes = Listed({"one": "token"})
    with pytest.raises(Problem, match="signature is none") as refused:
        await searched(boxes).signer(request(text))
    assert (refused.value.status, boxes.lists) == (401, 0)


@pytest.mark.parametrize("expires", ["1", "x", "²", "9" * 5000], ids=["1", "x", "²", "many"])
async def test_a_signature_whose_time_is_over_is_refused_without_a_list(expires: str) -> None:
    boxes = Listed({"one": "token"})
    asked = request(signature("token", f":{expires}"), f"&signature_expiration={quote(expires)}")
    with pytest.raises(Problem, match="time is over"):
        await searched(boxes).signer(asked)
    assert boxes.lists == 0


async def test_many_who_ask_at_once_cost_no_more_than_two_lists() -> None:
    boxes = Listed({"one": "token"})
    signatures = searched(boxes)
    async with asyncio.timeout(LONG):
        wrong = [signatures.signer(request(signature(f"wrong {one}"))) for one in range(100)]
        found = await asyncio.gather(*wrong, signatures.signer(request(signature("token"))))
    assert found == [""] * 100 + ["one"]
    assert boxes.lists <= 2


async def test_what_a_known_sandbox_has_signed_needs_no_list() -> None:
    boxes = Listed({"one": "token"})
    signatures = searched(boxes)
    found = [await signatures.signer(request(signature("token"))) for _ in range(5)]
    assert (found, boxes.lists) == (["one"] * 5, 1)


async def test_a_fresh_sandbox_is_found_though_others_were_just_searched() -> None:
    boxes = Listed({"one": "token"})
    signatures = searched(boxes)
    async with asyncio.timeout(LONG):
        assert await signatures.signer(request(signature("fresh"))) == ""
        boxes.tokens["two"] = "fresh"
        assert await signatures.signer(request(signature("fresh"))) == "two"


async def test_a_list_that_fails_finds_nobody_absent() -> None:
    boxes = Listed({"one": "token"})
    signatures = searched(boxes)
    works = boxes.living

    async def living() -> AsyncIterator[Any]:
        boxes.living = works  # type: ignore[method-assign]
        raise OSError("the hub does not answer")
        yield

    boxes.living = living  # type: ignore[method-assign]
    async with asyncio.timeout(LONG):
        found = await asyncio.gather(
            *(signatures.signer(request(signature("token"))) for _ in range(3)),
            return_exceptions=True,
        )
    assert isinstance(found[0], OSError)
    assert found[1:] == ["one", "one"]
