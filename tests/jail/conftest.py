"""Sandboxes to try: started by root where the tests are, and by an ordinary user."""

import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from jail import Outcome
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.limits import DEFAULTS
from jail.outcome import Program

from .reached import trainer as trainer
from .serving import served

MB = 1 << 20
# The clock ends no program that a busy machine is only slow with.
QUICK = replace(DEFAULTS, wall=100.0, compile_wall=100.0, memory=256 * MB)
ORDINARY_USER = 64123
STARTS = ["root", "user"] if os.getuid() == 0 else ["user"]

Run = Callable[..., Awaitable[Outcome]]


@cache
def reachable_python(user: int | None) -> str | None:
    """An interpreter of 3.11 or newer that this user may execute, with our source beside it."""
    source = Path(__file__).parents[2] / "jail/inside/zygote.py"
    for python in (sys.executable, "/usr/bin/python3"):
        # One that cannot reach the library of ours may find another's, and be another.
        ours = f"sys.base_prefix == {sys.base_prefix!r}" if python == sys.executable else "True"
        right = f"sys.version_info >= (3, 11) and {ours}"
        check = f"import sys; open({str(source)!r}); sys.exit(not ({right}))"
        try:
            subprocess.run(
                [python, "-I", "-c", check],
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                check=True,
                capture_output=True,
                cwd="/",
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    return None


def config_for(start: str) -> ServerConfig:
    if start == "root" or os.getuid() != 0:
        return ServerConfig()
    python = reachable_python(ORDINARY_USER)
    if python is None:
        pytest.skip("an ordinary user can reach neither a Python 3.11 nor this source folder")
    return ServerConfig(python=python, start_as=ORDINARY_USER)


@pytest.fixture(scope="session", autouse=True)
def fence() -> Iterator[None]:
    """Should a limit of ours fail, the programs' user still cannot fill the machine."""
    kept = resource.getrlimit(resource.RLIMIT_NPROC)
    most = 4096 if kept[1] == resource.RLIM_INFINITY else min(4096, kept[1])
    resource.setrlimit(resource.RLIMIT_NPROC, (most, kept[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NPROC, kept)


@pytest_asyncio.fixture(params=STARTS, scope="module", loop_scope="module")
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Jails]:
    """By root with cgroups where they can be had; by an ordinary user without. One a module."""
    by_root = request.param == "root"
    async with Jails(config_for(request.param), use_cgroups=by_root) as started:
        yield started


HELD = ("is_held", "children_behind")  # what holds a program is tried by both users


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """A compiler does not know who started its jail: the quick run has each test of a language
    by one of the two users, in turns, and the long run by the other."""
    tried: dict[str, str] = {}
    for item in items:
        start = getattr(item, "callspec", None) and item.callspec.params.get("sandbox")
        if item.path.name != "test_languages.py" or not start or len(STARTS) == 1:
            continue
        quick = tried.setdefault(item.nodeid.replace(start, ""), STARTS[len(tried) % 2])
        if start != quick and not any(words in item.name for words in HELD):
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def run(sandbox: Jails) -> Run:
    """Run a program with limits of 256 MB, 64 processes and 100 s, or others."""

    async def _run(code: str, language: str = "python", **given: Any) -> Outcome:
        names = set(DEFAULTS.on_the_wire())
        limits = replace(QUICK, **{name: given.pop(name) for name in names & set(given)})
        return await sandbox.run(Program(code, language, limits=limits, **given))

    return _run


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A sandbox behind HTTP, with 256 MB for a program."""
    yield from served(memory="256")
