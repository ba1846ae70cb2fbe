"""A client's orders without an engine: the test says what was sent, and what came back."""

import math
from typing import Any

from ground.redis.answers import Answer
from ground.redis.unit import Exchange
from ground.redis.url import parse_redis_url
from jail.models import CodeRequest
from worker.queue.client_orders import Orders
from worker.queue.order import JobHash, Order


class Heard(Answer):
    """An answer that only keeps what it was given."""


class NoEngine:
    """What orders need of one, and a clock that stands."""

    def __init__(self) -> None:
        self.target = parse_redis_url("redis://nowhere")
        self.now = 0.0
        self.stopped = False
        self.settled: list[Any] = []

    def clock(self) -> float:
        return self.now


def orders_alone() -> Any:
    return Orders(NoEngine(), "me")


def said(orders: Any, now: float = 0.0) -> list[Exchange]:
    """What is to be said now, less the sign of life."""
    orders.engine.now = now
    return [exchange for exchange in orders.exchange(now) if exchange.asks]


def order_of(id: str, client: Any = None) -> Order:
    hash = JobHash(
        "code", result_ttl=60, failure_ttl=60, retries=0, abandon=True, spare=0.0,
        patience=60.0, no_workers_after=60.0,
    )  # fmt: skip
    return Order(client, hash, id, CodeRequest(code=""), 0.0, math.inf)
