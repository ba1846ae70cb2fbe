"""A check of a contract: a name, the reason for it, and how it is run.

@pytest.mark.parametrize("check", sandbox_contract(), ids=str)
def test_my_sandbox_keeps_the_contract(check):
    check.run(MySandbox)
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from ground.errors import PenstockError

WITHIN = 180.0  # seconds for one check; a sandbox that hangs is a broken contract, and no hung test


class Closes(Protocol):
    """The subjects of both contracts can be closed."""

    async def close(self) -> None: ...


Subject = TypeVar("Subject", bound=Closes)


class ContractBroken(PenstockError):
    """A sandbox does not do what Penstock relies on."""


@dataclass(frozen=True)
class Check(Generic[Subject]):
    """A check of one promise. `await check(make)` in a coroutine, `check.run(make)` elsewhere.

    `make` returns a new sandbox or provider; the check closes it. `exception` is the reason why
    yours need not keep this promise. An excepted check must fail: one that passes says that the
    exception is no longer needed.
    """

    name: str
    why: str
    body: Callable[[Subject], Awaitable[None]]
    exception: str = ""

    def __str__(self) -> str:
        return self.name

    def run(self, make: Callable[[], Subject]) -> None:
        """Run the check on a new event loop. Raises `ContractBroken`."""
        asyncio.run(self(make))

    async def __call__(self, make: Callable[[], Subject]) -> None:
        """Run the check on this event loop. Raises `ContractBroken`."""
        problem = await self._problem(make())
        if problem is None and self.exception:
            raise ContractBroken(
                f"{self.name}: the check passes; remove it from exceptions ({self.exception})"
            )
        if problem is not None and not self.exception:
            raise ContractBroken(f"{self.name}: {_said(problem)}. {self.why}") from problem

    async def _problem(self, subject: Subject) -> Exception | None:
        broken = await self._raised_by(self.body(subject))
        unclosed = await self._raised_by(subject.close())
        return broken or unclosed

    async def _raised_by(self, step: Awaitable[None]) -> Exception | None:
        try:
            async with asyncio.timeout(WITHIN) as timer:
                await step
        except Exception as problem:  # noqa: BLE001 - reported as the broken contract that it is
            return ContractBroken(f"no end within {WITHIN:g} s") if timer.expired() else problem
        return None


def contract(
    bodies: Sequence[Callable[..., Awaitable[None]]],
    exceptions: Mapping[str, str],
    **given: Any,
) -> list[Check[Any]]:
    """The checks of these functions, in order. Raises `ValueError` for an unknown exception."""
    checks = {body.__name__: _check(body, given) for body in bodies}
    for name, reason in exceptions.items():
        if name not in checks:
            raise ValueError(f"no check is called {name!r}; the checks are {', '.join(checks)}")
        if not reason.strip():
            raise ValueError(f"the exception {name!r} needs a reason")
        checks[name] = replace(checks[name], exception=reason)
    return list(checks.values())


def _check(body: Callable[..., Awaitable[None]], given: dict[str, Any]) -> Check[Any]:
    async def bound(subject: Any) -> None:
        await body(subject, **given)

    return Check(body.__name__, " ".join((body.__doc__ or "").split()), bound)


def require(held: object, otherwise: str) -> None:
    """Require that a rule held. Else `ContractBroken` says what was found."""
    if not held:
        raise ContractBroken(otherwise)


def same(what: str, found: object, expected: object) -> None:
    """Require that two values are equal. Raises `ContractBroken` if they differ."""
    require(found == expected, f"{what} is {found!r:.200}, expected {expected!r:.200}")


def _said(problem: Exception) -> str:
    if isinstance(problem, ContractBroken):
        return str(problem)
    return f"it raised {type(problem).__name__}: {problem}"
