"""The token bucket: executions in flight, requests per second, or both."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from redis.exceptions import ResponseError

from ground import SettingError, connect
from ground.keys import tagged
from ground.lua import load_script
from ground.redis.connect import AnyRedis, target_of
from limiter.commands import INDEX, GateCommands
from limiter.errors import GateInUse, UnknownGate, spoiled
from limiter.gate import Gate
from limiter.terms import REQUESTS, Adaptive, Terms, check_manner, check_terms, read_amounts

if TYPE_CHECKING:
    from limiter.settings import LimiterSettings


class TokenBucket(Gate):
    """A gate of at most `limit` permits in flight, and at most `rate` grants per second,
    cluster-wide.

        gate = TokenBucket("redis://10.0.0.5", "code", limit=64)

        async with gate:                            # in coroutines
            ...
        with gate:                                  # in threads
            ...
        permit = await gate.acquire(timeout=5)      # to be given back by permit.release()

    Give `limit`, `rate` or both; one of them may be `Adaptive(start, min, max)`. All
    processes that use the same `name` on the same Redis share one gate; with a `run`, only
    those of that run. Times are in seconds.

    burst        grants that may come at once after a quiet time; by default a tenth of a
                 second's worth, and at least one
    rates        several amounts per second: `{"requests": 8, "tokens": 1700}`, in place of
                 `rate`; `acquire(cost={"tokens": 900})` says what a permit takes of them
    bursts       of those, by the same names
    lease        a holder that dies gives its permit back after this time
    heartbeat    how often a living process renews its leases; by default a third of `lease`
    patience     how long an `acquire` outlasts a Redis that does not answer
    orphan_hold  a permit that its holder does not release, since it died or ended, stays this much
                 longer: for work that outlives it
    enforce      overwrite the terms that stand in Redis; without it they win over those given
                 here, and a difference is logged
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str,
        *,
        limit: int | Adaptive | None = None,
        rate: float | Adaptive | None = None,
        burst: int | None = None,
        rates: Mapping[str, Any] | None = None,
        bursts: Mapping[str, int] | None = None,
        lease: float = 30.0,
        heartbeat: float | None = None,
        patience: float = 30.0,
        orphan_hold: float = 0.0,
        run: str | None = None,
        enforce: bool = False,
    ) -> None:
        if rates and (rate is not None or burst is not None):
            raise SettingError("rates", f"{REQUESTS!r} in it is the rate: give one of them")
        others, other_bursts = dict(rates or {}), dict(bursts or {})
        rate, burst = others.pop(REQUESTS, rate), other_bursts.pop(REQUESTS, burst)
        amounts = read_amounts(others, other_bursts)
        if limit is None and rate is None and not amounts:
            raise SettingError("limit", "a token bucket needs a limit, a rate, or both")
        if burst is not None and rate is None:
            raise SettingError("burst", f"a burst of {burst} needs a rate")
        check_terms(limit, rate, burst)
        if burst is None and rate is not None and not isinstance(rate, Adaptive):
            burst = max(1, math.ceil(rate / 10))
        super().__init__(
            redis,
            name,
            Terms(limit, rate, burst, amounts),
            check_manner(lease, heartbeat, patience, enforce, orphan_hold),
            run=run,
        )


class StartingGate(Gate):
    """A gate of at most `limit` sandboxes that are starting at once, over the whole fleet.

        gate = StartingGate.from_settings("redis://10.0.0.5")    # PENSTOCK_MAX_STARTING

        async with gate:
            sandbox = await create()      # and wait until it is ready

    A permit covers a sandbox from just before its creation until it is ready, or is
    confirmed dead. The other arguments are those of `TokenBucket`.
    """

    def __init__(
        self,
        redis: AnyRedis,
        name: str = "starting",
        *,
        limit: int | Adaptive = 128,
        lease: float = 30.0,
        heartbeat: float | None = None,
        patience: float = 30.0,
        orphan_hold: float = 0.0,
        run: str | None = None,
        enforce: bool = False,
    ) -> None:
        check_terms(limit, None, None)
        super().__init__(
            redis,
            name,
            Terms(limit),
            check_manner(lease, heartbeat, patience, enforce, orphan_hold),
            run=run,
        )

    @classmethod
    def from_settings(
        cls,
        redis: AnyRedis,
        settings: "LimiterSettings | None" = None,
        **options: Any,
    ) -> Self:
        """The fleet's gate, its limit by PENSTOCK_MAX_STARTING; `options` as on the constructor."""
        if settings is None:
            from limiter.settings import LimiterSettings

            settings = LimiterSettings.load()
        return cls(redis, limit=settings.max_starting, **options)


_REMOVE = load_script("limiter", "remove")


def gate_names(redis: AnyRedis) -> list[str]:
    """The names of all gates in use, sorted."""
    client = connect(target_of(redis))
    try:
        return sorted(name.decode(errors="replace") for name in _ask(client, "SMEMBERS", INDEX))
    finally:
        client.close()


def existing_gate(redis: AnyRedis, name: str) -> Gate:
    """A gate that exists, on its own terms; `UnknownGate` names those that exist."""
    target = target_of(redis)
    client = connect(target)
    try:
        found = _ask(client, "HMGET", tagged("gate", name), *_TERMS)
        names = (found[-1] or b"").decode(errors="replace").split()
        parts = [f"{what}:{each}" for what in ("rate", "burst") for each in names]
        amounts = _ask(client, "HMGET", tagged("gate", name), *parts) if parts else []
    except ResponseError as why:
        if "WRONGTYPE" not in str(why):
            raise
        raise spoiled(name, f"{target} answered: {why}") from None
    finally:
        client.close()
    if found[0] is None:
        raise UnknownGate(name, [known for known in gate_names(target) if known != name])
    try:
        terms = _terms(*((text or b"").decode() for text in found[:-1]))
        terms = replace(terms, amounts=read_amounts(
            dict(zip(names, map(float, amounts), strict=False)),
            dict(zip(names, map(int, amounts[len(names) :]), strict=True)),
        ))  # fmt: skip
    except (TypeError, ValueError, SettingError):
        # Somebody edited it, and it grants nothing. It is opened so that it can be corrected; if it
        # is removed meanwhile, it must not come back without a bound.
        terms = Terms(limit=1)
    return Gate(target, name, terms, check_manner(30.0, None, 30.0, enforce=False))


_TERMS = ("limit", "rate", "burst", "adapts", "start", "min", "max", "amounts")


def _terms(
    limit: str, rate: str, burst: str, adapts: str, start: str, least: str, most: str
) -> Terms:
    """The terms that a gate's hash says."""
    terms = Terms(
        int(limit) if limit else None, float(rate) if rate else None, int(burst) if burst else None
    )
    if adapts == "limit":
        return replace(terms, limit=Adaptive(int(start), int(least), int(most)))
    if adapts == "rate":
        return replace(terms, rate=Adaptive(*map(float, (start, least, most))), burst=None)
    return terms


def remove_gate(redis: AnyRedis, name: str, *, force: bool = False) -> None:
    """Delete a gate that is not in use. With `force`, also one that is.

    Raises `UnknownGate`, or `GateInUse`. A process that still has it open makes it again at
    its next request for a permit, with its own terms.
    """
    target = target_of(redis)
    keys = GateCommands(name, Terms(), "").all_keys
    client = connect(target)
    try:
        if not _ask(client, "EXISTS", tagged("gate", name)):
            raise UnknownGate(name, [known for known in gate_names(target) if known != name])
        if force:  # first: who has it open makes it again at once, and lists it
            _ask(client, "SREM", INDEX, name)
        in_flight, waiting = _REMOVE.call(client, keys, (int(force),))
        if not force:
            if in_flight + waiting:
                raise GateInUse(name, in_flight, waiting)
            _ask(client, "SREM", INDEX, name)
    finally:
        client.close()


def named_gate(
    redis: AnyRedis,
    name: str,
    limit: int | None,
    *,
    lease: float = 30.0,
    patience: float = 30.0,
) -> Gate:
    """The gate that a setting names: made with the limit, or without one as somebody made it.

    `lease` and `patience` are for the gate that has a limit here.
    """
    if limit is None:
        return existing_gate(redis, name)
    return TokenBucket(redis, name, limit=limit, lease=lease, patience=patience)


def _ask(client: Any, *words: str) -> Any:
    return client.execute_command(*words)
