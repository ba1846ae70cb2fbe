"""The embedded sandbox as it would start here: the doctor runs its self-test."""

import asyncio
import sys
from collections.abc import Iterator

from jail import SandboxUnavailable
from jail.jails import Jails
from jail.settings import SandboxSettings
from penstock.doctor.finding import Finding, ok, warn

_WEAKER = {
    "landlock": "namespaces hold more: unset PENSTOCK_SANDBOX_LEVEL where the machine allows them; "
    "docs/inside/sandbox-security.md says what this level does not contain",
    "none": "unset PENSTOCK_SANDBOX_LEVEL, unless you trust these programs like your own",
}
_OVERLAY = (
    "keep nothing mounted below what programs read, and put it on a file system that overlayfs "
    "takes; docs/inside/sandbox-security.md says what such locks do"
)
_NAMESPACES = "only the level ns gives programs locks of their own"
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
            languages = ok("languages", ", ".join(jails.languages))
            return [_level(jails), *_locks(jails), _memory(jails), languages]
    except SandboxUnavailable as refusal:
        return [warn("isolation", refusal.problem, refusal.remedy)]


def _level(jails: Jails) -> Finding:
    fact = f"level {jails.level}, {len(jails.findings)} attacks tried, all contained"
    if jails.level == "none":
        fact = "level none: programs run unconfined"
    remedy = _WEAKER.get(jails.level)
    return warn("isolation", fact, remedy) if remedy else ok("isolation", fact)


def _locks(jails: Jails) -> Iterator[Finding]:
    if jails.level == "ns" and not jails.not_overlaid:
        yield ok("file locks", "a program's locks on shared files are its own")
    for path, problem in jails.not_overlaid.items():
        fact = f"a program's locks below {path} can slow down the machine: {problem}"
        yield warn("file locks", fact, _OVERLAY)
    if jails.level == "landlock":
        yield warn("file locks", "a program's locks can slow down the machine", _NAMESPACES)


def _memory(jails: Jails) -> Finding:
    if jails.memory_by == "sampling":
        return warn("memory", "limited by sampling: no cgroup can be made here", _DELEGATE)
    return ok("memory", f"limited by {jails.memory_by}")
