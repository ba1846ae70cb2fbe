"""All machines of a run behind each of their servers: where a sandbox is, and where the next goes.

A request that was passed on carries the fleet's secret, and is answered where it came to: so none
goes in circles.
"""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import Response

from ground.http.guard import Message, Receive, Scope, Send
from ground.http.wires import Headers
from ground.process import aside
from ground.recent import Recent
from jail.sessions import TooManySessions
from worker.e2b.boxes import is_tag_of
from worker.e2b.fleet.machines import FRESH, Machine, Machines
from worker.e2b.fleet.relay import FORWARDED, TARGET, Relay, Unreachable
from worker.e2b.problems import Problem
from worker.e2b.wire import Json, refusal
from worker.lifecycle.registry.registry import Registry

BOX = b"e2b-sandbox-id"
_FULL = 429  # what a machine answers to a creation that was passed on to it, if it has no room
_REMEMBERED = 10_000
_TRIED = 4  # machines that look full
_ALIKE = 256  # steps of load within which machines count as equally loaded
_LISTING, _CREATING = 10.0, 120.0  # seconds; a client waits for its creation no longer
_CREATED_BY = (b"content-type", b"x-api-key", b"idempotency-key")


class Fleet:
    """The view of one server."""

    def __init__(self, own: Machine, machines: Machines, registry: Registry) -> None:
        self._own, self._machines, self._registry = own, machines, registry
        self._relay = Relay()
        self._scopes: Recent[str] = Recent(_REMEMBERED)  # of sandboxes; none ever moves

    @property
    def reached(self) -> bool:
        """Whether Redis answered last time."""
        return self._machines.reached

    def require_redis(self) -> None:
        """Raise `Problem` if Redis does not answer: each sandbox is registered there, so none can
        begin."""
        if not self.reached:
            raise Problem(
                "unavailable",
                "Redis does not answer, so no sandbox can start; running ones continue",
            )

    def was_forwarded(self, scope: Scope) -> bool:
        """Whether another server of the fleet passed this request on. Raises `Problem` for one that
        says so and does not know the secret."""
        given = dict(scope["headers"])
        if FORWARDED not in given:
            return False
        secret = self._machines.secret
        if not secret or not hmac.compare_digest(given[FORWARDED], secret.encode()):
            raise Problem("unauthenticated", "this was forwarded by no server of this fleet")
        if given.get(TARGET) != self._own.id.encode():
            raise Problem(
                "unavailable",
                f"the address of another machine leads to {self._own.id}: set"
                " PENSTOCK_E2B_ADDRESS there to one by which it is reached",
            )
        return True

    async def holder(self, name: str) -> Machine | None:
        """The other machine that has it; None if none that lives has."""
        scope = self._scopes.use(name) or await self._scope_of(name)
        if scope in ("", self._own.scope):
            self.forget(name)
            return None
        found = self._of(scope, self._machines.living())
        return found or self._of(scope, await self._machines.look(0.0))

    def forget(self, name: str) -> None:
        """Forget where a sandbox was: one of its name may come to be elsewhere. One of its name may
        come to be elsewhere."""
        self._scopes.pop(name, None)

    def _of(self, scope: str, living: list[Machine]) -> Machine | None:
        return next((machine for machine in living if machine.scope == scope), None)

    async def _scope_of(self, name: str) -> str:
        try:
            record = await aside(lambda: self._registry.record(name))
        except (RedisError, OSError) as problem:
            raise Problem(
                "unavailable",
                f"Redis does not answer, and {name} is not on this machine: {problem}",
            ) from None
        if record is None or not record.scope:
            return ""
        self._scopes.put(name, record.scope)
        return record.scope

    def passed_on(self, machine: Machine, name: str) -> Response:
        """The response that has that machine's server answer."""
        self._relay.secret = self._machines.secret
        return _PassedOn(self._relay, machine, name, lambda: self.forget(name))

    async def create(
        self, request: Request, raw: bytes, name: str, image: str,
        here: Callable[[], Awaitable[Response]],
    ) -> Response:  # fmt: skip
        """Create a sandbox on the machine that has most room, of those that have the image. `name`
        is that of a request that may repeat an earlier one. A machine that was asked is waited for:
        a sandbox may have begun there."""
        self.require_redis()
        self.forget(name)
        holder = await self.holder(name) if name else None
        full, silent = 0, None
        for machine in [holder] if holder else await self._places(image):
            self._machines.note(replace(machine, alive=machine.alive + 1))
            try:
                if machine.id == self._own.id:
                    return await here()
                answer = await self._asked(machine, request, raw)
                if answer.status_code != _FULL:
                    return answer
            except Unreachable as problem:
                silent = problem
                continue
            except TooManySessions:
                pass
            full += 1
            self._machines.note(replace(machine, alive=machine.most))
        if silent:
            others = f" (others that are full: {full})" if full else ""
            raise Problem("unavailable", f"{silent.message}{others}")
        raise Problem(
            "unavailable",
            f"no machine has room for another sandbox ({full} full): end some, wait, or raise"
            " PENSTOCK_SESSION_MOST",
        )

    async def knows(self, template: str) -> bool:
        """Whether a machine of the fleet has a template of this name, under any tag."""
        machines = await self._machines.look()
        return any(is_tag_of(image, template) for each in machines for image in each.images)

    async def _places(self, image: str) -> list[Machine]:
        """The places to try, the best first: those with room, then some that look full."""
        ranked: list[Machine] = []
        for fresh in (FRESH, 0.0):
            living = await self._machines.look(fresh)
            able = [one for one in living if not image or one.has(image)]
            ranked = sorted(able, key=self._load)
            if fit := [one for one in ranked if one.room]:
                return fit + [one for one in ranked if not one.room][:_TRIED]
        return ranked[:_TRIED] or [self._own]

    def _load(self, machine: Machine) -> tuple[int, bool]:
        share = machine.alive * _ALIKE // max(1, machine.most)
        return share, machine.id != self._own.id

    async def _asked(self, machine: Machine, request: Request, raw: bytes) -> Response:
        headers = [pair for pair in request.scope["headers"] if pair[0] in _CREATED_BY]
        path = request.scope["raw_path"].decode()
        status, given, body = await self._ask(machine, "POST", path, headers, raw, within=_CREATING)
        kind = dict(given).get(b"content-type", b"application/json").decode()
        more = {
            name.decode(): value.decode()
            for name, value in given
            if name in (b"retry-after", b"should-retry")
        }
        return Response(body, status, more, kind)

    async def listings(self, key: str) -> list[Json]:
        """The sandboxes of all other machines. Raises `Problem` if one that lives is silent: a
        list without its sandboxes would say that they are gone."""
        headers = [(b"x-api-key", key.encode())]
        others = await self._others()
        asked = [self._ask(one, "GET", "/sandboxes", headers) for one in others]
        answers = await asyncio.gather(*asked)
        found: list[Json] = []
        for machine, (status, _, body) in zip(others, answers, strict=True):
            if status != 200:
                raise Problem("unavailable", f"{machine.id} answers {status}: {body[:200]!r}")
            found += json.loads(body)
        return found

    async def signed(self, query: str, method: str) -> tuple[Machine, str] | None:
        """Find whose token has signed the address of a file, and which sandbox's that is."""
        silent: Problem | None = None

        async def ask(machine: Machine) -> tuple[Machine, str] | None:
            status, _, body = await self._ask(machine, method, f"/signed?{query}", [])
            return (machine, json.loads(body)["sandbox"]) if status == 200 else None

        asked = [asyncio.ensure_future(ask(machine)) for machine in await self._others()]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    if found := await answer:
                        return found
                except Problem as problem:  # another one may have signed it
                    silent = problem
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if silent:
            raise silent
        return None

    async def _others(self) -> list[Machine]:
        """A server of each other machine."""
        living = await self._machines.look()
        by_scope = {one.scope: one for one in living if one.scope != self._own.scope}
        return list(by_scope.values())

    async def _ask(
        self, machine: Machine, method: str, path: str, headers: Headers, body: bytes = b"",
        within: float = _LISTING,
    ) -> tuple[int, Headers, bytes]:  # fmt: skip
        self._relay.secret = self._machines.secret
        try:
            async with asyncio.timeout(within):
                return await self._relay.ask(machine, method, path, headers, body)
        except TimeoutError:
            why = f"the server of {machine.id} does not answer within {within:g} s"
        except OSError as cut:
            why = f"the server of {machine.id} hung up: {cut!r}"
        raise Problem("unavailable", why)

    def close(self) -> None:
        self._relay.close()


class _PassedOn(Response):
    """This response streams both ways, by the relay."""

    def __init__(self, relay: Relay, machine: Machine, name: str, gone: Callable[[], None]) -> None:
        super().__init__()
        self._relay, self._machine, self._name = relay, machine, name
        self._gone = gone  # what to call if that machine knows no such sandbox

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [pair for pair in scope["headers"] if pair[0] != BOX]
        named = {**scope, "headers": [*headers, (BOX, self._name.encode())]}

        async def noting(message: Message) -> None:
            if message.get("status") in (404, 502):
                self._gone()
            await send(message)

        try:
            await self._relay.pass_on(self._machine, named, receive, noting)
        except Problem as problem:
            await refusal(problem)(scope, receive, send)
