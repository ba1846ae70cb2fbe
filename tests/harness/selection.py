"""What `make test` leaves to `make test-all`, and what comes in turns.

With PENSTOCK_TEST_ALL everything runs. Else each behaviour is tested once:

- On a real Redis. Of the files of `ON_BOTH` a quarter also runs on fakeredis, which users test
  with, and another one at each turn.
- By root or by an ordinary user, in turns, if a file's tests are for both.
- With one value of what `@pytest.mark.in_turns("kind", …)` names: each value shows the same. So
  `in_turns("kind")` runs every story of a test at each turn, and each story with another kind.
- The blocks of the pages that a newcomer meets.
- What is dear by `.ci/durations.txt` takes turns, and so do the blocks of other pages. A file that
  the last commit changed, or you since, is tested whole.

A turn is a commit: their number says which it is, or PENSTOCK_TEST_TURN. Tests that are named by
`::` run whatever they are. PENSTOCK_TEST_REST=3/4 runs the fourth of four parts of the others.
"""

import os
import subprocess
import zlib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.harness import budget
from tests.harness.budget import DEAR

ROOT = Path(__file__).parents[2]
EVERYTHING = bool(os.environ.get("PENSTOCK_TEST_ALL"))
REST = os.environ.get("PENSTOCK_TEST_REST", "")
ON_BOTH = {
    "tests/limiter/test_scripts.py",
    "tests/limiter/test_faces.py",
    "tests/buffer/test_group_life.py",
    "tests/worker/queue/test_code_queue.py",
    "tests/worker/concurrent/test_spoiled_jobs.py",
    "tests/penstock/test_pytest_plugin.py",
}
FIRST_PAGES = {
    "README.md",
    *(f"docs/guide/{name}.md" for name in ("start", "rq", "gates", "sandbox", "rewards")),
}
TURNS = 20
_FAKES = 4
_USERS = {"root", "user"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERYTHING or any("::" in word for word in config.args):
        return
    paired = _for_both_users(items)
    waiting = {item for item in items if _waits(item, paired)}
    waiting |= _of_other_values([item for item in items if item not in waiting])
    waiting |= _of_other_turns([item for item in items if item not in waiting])
    left = [item for item in items if (item in waiting) != bool(REST) or _is_another_parts(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def _is_another_parts(item: pytest.Item) -> bool:
    part, _, parts = REST.partition("/")
    return bool(REST) and zlib.crc32(item.nodeid.encode()) % int(parts) != int(part)


def _for_both_users(items: list[pytest.Item]) -> set[Any]:
    """Tests that there are for each of them: `user` may be a word of something else, too."""
    found: dict[Any, set[str]] = defaultdict(set)
    for item in items:
        found[_of_several(item)] |= _strings(item) & _USERS
    return {test for test, users in found.items() if users == _USERS}


def _of_several(item: pytest.Item) -> Any:
    return item.path, getattr(item, "originalname", item.name)


def _strings(item: pytest.Item) -> set[str]:
    given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return {value for value in given.values() if isinstance(value, str)}


def _waits(item: pytest.Item, paired: set[Any]) -> bool:
    """Whether another case of it tests the same."""
    file, values = _file_of(item), _strings(item)
    if "fake" in values and file not in ON_BOTH & _changed():
        return file not in ON_BOTH or (zlib.crc32(item.nodeid.encode()) + turn()) % _FAKES != 0
    if (user := values & _USERS) and os.getuid() == 0 and _of_several(item) in paired:
        return min(user) != ("root", "user")[(zlib.crc32(file.encode()) + turn()) % 2]
    return False


def _of_other_values(items: list[pytest.Item]) -> set[pytest.Item]:
    """Of tests that differ only in what takes turns, all but one."""
    alike: dict[Any, list[pytest.Item]] = defaultdict(list)
    for item in items:
        named = {name for mark in item.iter_markers("in_turns") for name in mark.args}
        if named and _cost_of(item) < DEAR and _file_of(item) not in _changed():
            given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
            kept = sorted((name, id(value)) for name, value in given.items() if name not in named)
            alike[_of_several(item), *kept].append(item)
    others = set()
    for n, ((test, *_), cases) in enumerate(alike.items()):
        chosen = (n + zlib.crc32(test[1].encode()) + turn()) % len(cases)
        others |= {*cases[:chosen], *cases[chosen + 1 :]}
    return others


def _of_other_turns(items: list[pytest.Item]) -> set[pytest.Item]:
    """The dear ones are dealt out so that each turn costs the same."""
    dear = []
    for item in items:
        page = _page_of(item)
        takes_turns = _cost_of(item) >= DEAR if page is None else page not in FIRST_PAGES
        if takes_turns and not {_file_of(item), page} & _changed():
            dear.append((-(_cost_of(item) or DEAR), item.nodeid, item))
    spent = [0.0] * TURNS
    others = set()
    for cost, _, item in sorted(dear, key=lambda one: one[:2]):
        lightest = spent.index(min(spent))
        spent[lightest] -= cost
        if lightest != turn() % TURNS:
            others.add(item)
    return others


def _cost_of(item: pytest.Item) -> float:
    """Units, or 0 if none are noted."""
    noted = _kept().get(item.nodeid.partition("[")[0])
    return noted.case if noted else 0.0


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _page_of(item: pytest.Item) -> str | None:
    document = getattr(getattr(item, "callspec", None), "params", {}).get("document")
    if item.path.name == "test_blocks.py" and isinstance(document, Path):
        return document.relative_to(ROOT).as_posix()
    return None


@cache
def _kept() -> dict[str, budget.Cost]:
    return budget.kept()


@cache
def turn() -> int:
    if named := os.environ.get("PENSTOCK_TEST_TURN"):
        return int(named)
    said = _git("rev-list", "--count", "HEAD").strip()
    return int(said) if said else 0


@cache
def _changed() -> frozenset[str]:
    """Files that differ from the last commit, or that it changed."""
    return frozenset(_git("diff", "--name-only", "HEAD~1").split())


def _git(*words: str) -> str:
    """Empty outside a checkout, and in one of a single commit."""
    try:
        return subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout
    except OSError:
        return ""
