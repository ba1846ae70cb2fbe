"""A plain install does what a machine of a fleet does; what else there is names its extra."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ground.extras import EXTRAS
from tests.harness.servers import PrivateRedis

ROOT = Path(__file__).parents[2]


def without(packages: set[str]) -> str:
    """The beginning of a program for which these packages are not installed."""
    return f"""
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""


HIDDEN = without(EXTRAS)
PENSTOCK = f"{HIDDEN}\nfrom penstock.entry import main\nmain()"
DIRECT = {
    "redis", "rq", "httpx", "pydantic", "pydantic_settings", "dotenv", "click", "packaging",
    *EXTRAS,
}  # fmt: skip
# redis-py asks for it, if it is there.
OF_REDIS = {"opentelemetry"}


def plain(program: str, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT, env=clean | more, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def penstock(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return plain(PENSTOCK, *arguments, **more)


@pytest.mark.parametrize(
    ("statement", "loaded"),
    [
        ("from limiter import TokenBucket", {"redis"}),
        ("import jail", set()),
        ("from jail import LocalSandbox", {"pydantic"}),
        ("from buffer import RolloutBuffer", {"redis", "pydantic"}),
        ("from worker import CodeQueue", {"redis", "rq", "pydantic"}),
    ],
)
def test_an_import_loads_only_the_packages_that_it_uses(statement: str, loaded: set[str]) -> None:
    result = plain(f"{statement}\nimport sys\nprint(*{{n.partition('.')[0] for n in sys.modules}})")
    assert result.returncode == 0, result.stderr
    assert set(result.stdout.split()) & DIRECT - OF_REDIS == loaded


@pytest.mark.parametrize(
    "statement",
    [
        "from limiter import TokenBucket",
        "from worker import CodeQueue, ConcurrentWorker, SandboxFusion",
        "from buffer import RolloutBuffer",
        "from jail import LocalSandbox; import jail.sessions.hub.hub",
        "from worker.reward import compute_score",
        "from worker.tool import SandboxFusionTool",
        "from worker.rollout import Rollout",
        "from worker.lifecycle import SandboxLifecycle",
    ],
)
def test_a_plain_install_has_what_trainers_and_workers_import(statement: str) -> None:
    result = plain(f"{HIDDEN}\n{statement}")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "command",
    ["limits ls", "queues ls", "groups ls", "sandbox ls", "health redis", "doctor", "top --once"],
)
def test_a_plain_install_looks_after_a_fleet(command: str, shared_server: PrivateRedis) -> None:
    result = penstock(*command.split(), PENSTOCK_REDIS_URL=shared_server.url)
    assert "Traceback" not in result.stderr
    verdicts = (0, 1, 3) if command in ("doctor", "top --once") else (0,)
    assert result.returncode in verdicts, result.stderr


def test_a_worker_of_a_plain_install_runs_a_program(shared_server: PrivateRedis) -> None:
    url = {"PENSTOCK_REDIS_URL": shared_server.url, "PENSTOCK_CONCURRENCY": "2"}
    program = (
        "from worker import CodeQueue\n"
        f"queue = CodeQueue({shared_server.url!r}, 'plain').sync\n"
        "handle = queue.submit('print(6 * 7)')\n"
        "from penstock.entry import main\n"
        "sys.argv = ['penstock', 'worker', 'plain', '--sandbox', 'local', '--burst']\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert ended.code == 0\n"
        "print(handle.result().run_result.stdout)\n"
    )
    result = plain(f"{HIDDEN}\n{program}", **url)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "42"


def test_every_subcommand_can_be_read_about_in_a_plain_install() -> None:
    from penstock.cli import COMMANDS

    for name in COMMANDS:
        result = penstock(name, "--help")
        assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("command", "what", "extra"),
    [
        ("monitor", "penstock monitor", "serve"),
        ("buffer serve", "penstock buffer serve", "serve"),
        ("sandbox serve", "penstock sandbox serve", "serve"),
        ("openenv", "penstock openenv", "serve"),
        ("up", "penstock up", "serve"),
        ("worker --sandbox local --metrics-port 0", "--metrics-port", "serve"),
        ("demo", "penstock demo", "top"),
    ],
)
def test_a_command_without_its_packages_names_the_extra(
    command: str, what: str, extra: str, shared_server: PrivateRedis
) -> None:
    result = penstock(*command.split(), PENSTOCK_REDIS_URL=shared_server.url)
    assert result.returncode == 2, result.stderr
    said = f"penstock: {what} needs the extra `{extra}`: pip install 'penstock-rl[{extra}]'"
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_redis_and_a_server_to_embed_its_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    result = penstock("worker", "--sandbox", "local", PATH=str(tmp_path / "bin"),
                      PENSTOCK_DATA_DIR=str(tmp_path / "data"))  # fmt: skip
    assert result.returncode == 2, result.stderr
    assert "pip install 'penstock-rl[embedded]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_pytest_plug_in_loads_without_fakeredis_and_names_its_extra(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(without({*EXTRAS} - {"pytest"}))
    (tmp_path / "test_users.py").write_text(
        "def test_of_theirs():\n    pass\n\ndef test_of_ours(penstock_redis):\n    pass\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:valkey", "-p", "no:cacheprovider",
         "-c", "/dev/null", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert "1 passed, 1 error" in result.stdout, result.stdout + result.stderr
    assert "needs the extra `test`: pip install 'penstock-rl[test]'" in result.stdout


def test_each_extra_that_is_named_is_one_that_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    (everything,) = project["optional-dependencies"]["all"]
    for extra in set(EXTRAS.values()):
        assert extra in everything
