"""Files hold one whole idea. A warning, for a person to judge; never a failure."""

import ast
import statistics
import warnings

import pytest

from tests.architecture.source import PACKAGES, modules, name_of, scripts, tree
from tests.architecture.tree import imports_of, module_of

FILE, ROOM, MEDIAN, P90, LUA = 400, 60, 8, 25, 60

# Small files of one importer each, that stand better alone.
STAND_ALONE = {
    "buffer/generator/base_generator.py": "public: users' generators import it",
    "penstock/commands/worker_door.py": "loaded with --metrics-port alone: HTTP is slow to import",
    "penstock/doctor/isolation.py": "the doctor has a file a check",
    "penstock/monitor/page.py": "beside the files that it puts together",
    "penstock/variables.py": "docs.tools.settings_page reads the settings by it too",
    "worker/notices.py": "jobs in Redis hold its name",
    "worker/sandbox/serve/notebook.py": "the way of one request, as answer.py is of the other",
    "worker/sandbox/serve/openapi.py": "a document of its own, as buffer.http and monitor have",
    "worker/tool/settings.py": "settings of a package are looked for in its `settings`",
    "worker/tool/verl_host.py": "what it may do depends on verl, and the tool on it",
}


# Longer files that are one idea all the same.
WHOLE = {
    "buffer/rollout_buffer.py": "both faces of a buffer; apart they would import each other",
    "limiter/ledger.py": "an ask names its ledger; apart they would import each other",
    "worker/sandbox/local/inside/notebook.py": "it is sent as one text into sandboxes",
}


@pytest.mark.filterwarnings("always::UserWarning")
def test_files_are_short_enough_to_be_read_in_one_sitting() -> None:
    for file, limit in [*((f, FILE) for f in modules()), *((f, LUA) for f in scripts())]:
        lines = len(file.read_text().splitlines())
        if lines > limit and name_of(file) not in WHOLE:
            warnings.warn(f"{name_of(file)} has {lines} lines (aim: {limit})", stacklevel=1)


@pytest.mark.filterwarnings("always::UserWarning")
def test_a_small_file_has_more_than_one_user() -> None:
    """A small room with one door is a part of the next one, mostly."""
    users: dict[str, set[str]] = {}
    for user, imported in imports_of(modules()).items():
        for module in imported:
            users.setdefault(module, set()).add(user)
    for file in modules():
        lines, module = len(file.read_text().splitlines()), module_of(file)
        if file.name == "__init__.py" or name_of(file) in STAND_ALONE:
            continue
        if lines < ROOM and len(users.get(module, ())) == 1:
            (only,) = users[module]
            warnings.warn(f"{name_of(file)} has {lines} lines, for {only} alone", stacklevel=1)


def test_what_stands_alone_is_there() -> None:
    assert {*STAND_ALONE, *WHOLE} <= {name_of(file) for file in modules()}


@pytest.mark.filterwarnings("always::UserWarning")
@pytest.mark.parametrize("package", PACKAGES)
def test_functions_do_one_thing(package: str) -> None:
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for file in modules(package)
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    if len(lengths) < 2:
        return
    median, p90 = statistics.median(lengths), lengths[int(len(lengths) * 0.9)]
    if median > MEDIAN or p90 > P90:
        warnings.warn(
            f"{package}: functions have a median of {median} lines and a p90 of {p90} "
            f"(aim: {MEDIAN} and {P90})",
            stacklevel=1,
        )
