"""The embedded sandbox as it would start here: the doctor runs its self-test."""

import asyncio
import sys
from collections.abc import Iterator

from penstock.doctor.finding import Finding, ok, warn
from worker.sandbox.local import Jails, SandboxUnavailable
from worker.sandbox.local.settings import SandboxSettings

_WEAKER = {
    "landlock": "namespaces hold more: unset PENSTOCK_SANDBOX_LEVEL where the machine allows them; "
    "docs/inside/sandbox-security.md says what this level does not contain",
    "none": "unset PENSTOCK_SANDBOX_LEVEL, unless you trust these programs like your own",
}
_DELEGATE = "for exact limits run as root or, under systemd, with Delegate=yes"


def check_isolation() -> Iterator[Finding]:
    """None fails: a remote sandbox needs none of it."""
    if sys.platform != "linux":
        yield warn("isolation", f"none on {sys.platform}", "run workers on Linux")
        return
    yield from asyncio.run(_tried(Jails(SandboxSettings.load().config())))


async def _tried(jails: Jails) -> list[Finding]:
    try:
        async with jails:
            return [_level(jails), _memory(jails), ok("languages", ", ".join(jails.languages))]
    except SandboxUnavailable as refusal:
        return [warn("isolation", refusal.problem, refusal.remedy)]


def _level(jails: Jails) -> Finding:
    fact = f"level {jails.level}, {len(jails.findings)} attacks tried, all contained"
    if jails.level == "none":
        fact = "level none: programs run unconfined"
    remedy = _WEAKER.get(jails.level)
    return warn("isolation", fact, remedy) if remedy else ok("isolation", fact)


def _memory(jails: Jails) -> Finding:
    if jails.memory_by == "sampling":
        return warn("memory", "limited by sampling: no cgroup can be made here", _DELEGATE)
    return ok("memory", f"limited by {jails.memory_by}")
