"""Every command and program in the README and in docs/ does what it says.

`make` runs in the repository, everything else in a scratch folder with the commands
of this environment first on the PATH and a server in PENSTOCK_REDIS_URL. The README has
no such server: its reader has none. `make demo` and `make help` are really run. Other
targets must exist; `make test` is this very run.

A line that ends with `&` runs until the end of its page, as it does in its reader's
terminal. `export NAME=VALUE` holds for the steps after it.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.docs.blocks import Step, matches, steps
from tests.harness import commands
from tests.harness.servers import PrivateRedis
from tests.worker.e2b.serving import E2bServer
from tests.worker.hosts.stubbed import path_of

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_REALLY = {"make", "make help", "make demo"}
EXPORT = re.compile(r"export (\w+)=(.*)")
PATIENCE = 90  # seconds until what starts in the background has written its address
STAND_IN = Path(__file__).with_name("redis_cli.py")


@pytest.fixture
def environment(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    tools = tmp_path_factory.mktemp("bin")
    cli = shutil.which("redis-cli")
    command = f"{cli} -u $PENSTOCK_REDIS_URL --no-raw" if cli else f"{sys.executable} {STAND_IN}"
    (tools / "redis-cli").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (tools / "redis-cli").chmod(0o755)
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "MAKE", "MFLAGS"))
    }
    with PrivateRedis(tmp_path / "redis") as server, commands.on_path(tools):
        path = f"{tools}:{Path(sys.executable).parent}:{clean['PATH']}"
        settings = {"PENSTOCK_REDIS_URL": server.url, "PENSTOCK_IMAGES": str(tmp_path / "images")}
        yield clean | settings | {"PATH": path, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def modal() -> Iterator[dict[str, str]]:
    """Modal's servers, as far as the page needs them, and credentials that they know."""
    pytest.importorskip("modal", reason="penstock-rl[modal] is not installed")
    from tests.worker.lifecycle.modal_stand_in import SECRET, StandIn

    with StandIn() as servers:
        token = {"MODAL_TOKEN_ID": "ak-test", "MODAL_TOKEN_SECRET": SECRET}
        yield token | {"MODAL_SERVER_URL": servers.url}


@pytest.fixture
def e2b(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A server of E2B's protocol, and the variables by which the SDK finds it."""
    with E2bServer(tmp_path / "e2b") as server:
        key = {"E2B_API_KEY": server.options["api_key"]}
        yield key | {"E2B_API_URL": server.url, "E2B_SANDBOX_URL": server.url}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_document_do_what_they_say(
    document: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not (to_run := steps(document)):
        return
    environment: dict[str, str] = request.getfixturevalue("environment")
    if document.name == "modal.md":
        environment |= request.getfixturevalue("modal")
    if document.name in ("e2b.md", "clouds.md"):
        environment |= request.getfixturevalue("e2b")
    if hosts := path_of(document.stem):
        environment["PYTHONPATH"] += f":{hosts}"
    if document == README:
        del environment["PENSTOCK_REDIS_URL"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with ExitStack() as until_the_end:
        for step in to_run:
            where = f"{document.name}:{step.line}: {step.program.splitlines()[0]}"
            if step.program.startswith("make") and step.program not in RUN_REALLY:
                assert _is_a_target(step.program), where
                continue
            if step.program == ". .venv/bin/activate":
                continue  # this environment is the one that `make` has made
            if step.kept_as:
                (scratch / step.kept_as).write_text(step.program)
                continue
            if step.program.endswith("&"):
                until_the_end.enter_context(_in_the_background(step, scratch, environment))
                continue
            result = _run(step, scratch, environment)
            assert result.returncode == 0, f"{where}\n{result.stdout}"
            if exported := EXPORT.fullmatch(step.program):
                environment[exported[1]] = result.stdout
            if step.output is not None:
                assert matches(step.output, result.stdout), f"{where}\n{result.stdout}"


@contextmanager
def _in_the_background(step: Step, scratch: Path, env: dict[str, str]) -> Iterator[None]:
    """Its group ends with the page: warmly, as by Ctrl-C, or else by force."""
    with (scratch / "background.log").open("a") as log:
        process = subprocess.Popen(
            # Bounded, for a run of the tests that is killed itself.
            ["timeout", "--kill-after=9", "290", "bash", "-ec", step.program.removesuffix("&")],
            cwd=scratch,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _run(step: Step, scratch: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    if step.python:
        (scratch / "program.py").write_text(step.program)
        return commands.run_program("program.py", env=env, cwd=scratch)
    if step.program.startswith("make"):
        # This environment is the installed one, and is not to be made again.
        kept = [f"--old-file={sys.prefix}/{stamp}" for stamp in (".runs", ".installed")]
        command, folder = [*step.program.split(), f"VENV={sys.prefix}", *kept], ROOT
        env = {name: value for name, value in env.items() if not name.startswith("PENSTOCK_")}
    elif exported := EXPORT.fullmatch(step.program):
        command, folder = ["bash", "-ec", f'value={exported[2]}; printf %s "$value"'], scratch
    else:
        command, folder = ["bash", "-ec", step.program], scratch
    return subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )


def _is_a_target(command: str) -> bool:
    named = [word for word in command.split()[1:] if "=" not in word]
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return bool(named) and set(named) <= set(targets)


def test_what_ci_runs_is_what_the_readme_says() -> None:
    assert "$ make test\n" in (ROOT / "README.md").read_text()
    assert "\nsteady make test\n" in (ROOT / ".ci" / "run").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^test: tests ", makefile, re.M)
    recipe = re.search(r"^tests: .*\n((?:\t.*\n)+)", makefile, re.M)
    assert recipe is not None
    assert "pytest" in recipe[1]


def test_expected_output_is_compared_word_by_word() -> None:
    assert matches("3.5 s  on Redis 7.0.15\n", "2.9 s on  Redis 8.1   \n")
    assert matches("a ... c\n", "a b b c\n")
    assert matches("first\n...\nlast\n", "first\n1\n2\nlast\n")
    assert matches("first\n...\nlast\n", "first\nlast\n")
    assert not matches("40 jobs\n", "39 jobs\n")
    assert not matches("first\n", "first\nsecond\n")
    assert not matches("2.0\n", "two\n")


def test_a_block_that_nobody_runs_is_refused(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text("```sh\nrm -rf /\n```\n")
    with pytest.raises(ValueError, match=r"doc.md:1: a block of 'sh' is not run"):
        steps(document)


def test_commands_and_programs_are_found_with_their_output(tmp_path: Path) -> None:
    document = tmp_path / "doc.md"
    document.write_text(
        "```console\n$ echo a \\\n  b\na b\n$ true\n```\n\n"
        "```python\nprint(1)\n```\n\n```output\n1\n```\n"
        "```python kept.py\npass\n```\n"
    )
    assert steps(document) == [
        Step(1, "echo a \\\n  b", output="a b\n"),
        Step(1, "true"),
        Step(8, "print(1)\n", python=True, output="1\n"),
        Step(15, "pass\n", python=True, kept_as="kept.py"),
    ]
