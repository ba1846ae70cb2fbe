"""Test files are compiled once, before the processes start that run them.

pytest compiles each one with its assertions rewritten, and keeps it. In a new clone, each of six
processes would do so with the same file at the same moment: 50 seconds of a processor.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

_PROCESSES = 2


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    paths = {Path(word.partition("::")[0]) for word in config.args}
    files = sorted({file for path in paths for file in (path, *path.rglob("*.py"))})
    tests = [file for file in files if file.name == "conftest.py" or file.match("test_*.py")]
    children = []
    for n in range(_PROCESSES):
        if not (child := os.fork()):
            try:
                _compile(tests[n::_PROCESSES], config)
            finally:
                os._exit(0)  # what is left, the others compile
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def _compile(files: Sequence[Path], config: pytest.Config) -> None:
    state = config.stash[rewrite.assertstate_key]
    for file in files:
        folder = rewrite.get_cache_dir(file)
        kept = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(folder) and rewrite._read_pyc(file, kept) is None:
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, kept)
