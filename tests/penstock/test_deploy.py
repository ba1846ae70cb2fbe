"""compose.yaml and the Dockerfile: every command, variable and health check in them really runs.

No engine is needed: what a container would run is read from the files and run here, with
paths and ports of the test's.
"""

import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from docs.tools import reference
from ground.redis.url import parse_redis_url
from ground.server.binary import bundled_server
from ground.settings import variables
from penstock.cli import COMMANDS
from penstock.variables import settings_models
from tests.architecture.source import ROOT
from tests.gateway.scripted.engine import Served
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.harness import leash
from tests.harness.remains import processes_in
from tests.harness.servers import free_port, until
from tests.penstock import promql

DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("penstock:")]
BIN = Path(sys.executable).parent
KNOWN_KEYS = {
    "image", "build", "init", "restart", "read_only", "tmpfs", "cap_drop", "security_opt",
    "stop_grace_period", "entrypoint", "command", "secrets", "environment", "volumes", "networks",
    "healthcheck", "deploy", "depends_on", "ports", "profiles", "cpu_shares",
}  # fmt: skip


class Deployment:
    """What compose would start, as processes of this test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {port: free_port() for port in ("6379", "8080", "8889", "8890", "8893")}
        self.engine = Served(ScriptedVllm())
        subprocess.run(
            [sys.executable, ROOT / "deploy" / "make_secrets.py"], cwd=folder, check=True
        )
        self.user = [] if os.geteuid() else as_user_of_the_image()
        for made, words in folders_of_the_image().items():
            here = [word.replace(made, str(folder) + made) for word in words]
            subprocess.run(here if self.user else ["mkdir", here[-1]], check=True)
        (folder / "bin").mkdir()
        (folder / "bin" / "valkey-server").symlink_to(bundled_server())
        (folder / "secrets").chmod(0o711)  # in a container, each file is mounted without its folder
        url = folder / "secrets" / "redis_url"
        text = url.read_text().replace("@redis:6379", f"@127.0.0.1:{self.ports['6379']}")
        url.chmod(0o644)
        url.write_text(text)
        self.processes: list[subprocess.Popen[Any]] = []

    def environment(self, name: str) -> dict[str, str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
        given = {k: self.here(v) for k, v in SERVICES[name].get("environment", {}).items()}
        own = {
            "PATH": f"{self.folder / 'bin'}:{BIN}:{clean['PATH']}",
            "HOME": str(self.folder / "nowhere"),
            "PENSTOCK_BUFFER_PORT": str(self.ports["8889"]),
            "PENSTOCK_MONITOR_PORT": str(self.ports["8890"]),
            "PENSTOCK_GATEWAY_PORT": str(self.ports["8893"]),
            "PENSTOCK_GATEWAY_ENGINES": f"vllm={self.engine.url}",
        }  # fmt: skip
        return clean | given | own

    def start(self, name: str) -> None:
        service = SERVICES[name]
        entry = service.get("entrypoint", ["penstock"])
        words = [self.here(word.replace("$$", "$")) for word in [*entry, *service["command"]]]
        env = self.environment(name)
        # The image's user where a volume is; Python may lie where that user cannot read here.
        user = self.user if service.get("volumes") else []
        program = shutil.which(words[0], path=env["PATH"]) or words[0]
        self.processes.append(
            leash.start([*user, program, *words[1:]], env=env,
                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        )  # fmt: skip

    def healthy(self, name: str) -> bool:
        kind, *words = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        env = self.environment(name)
        checked = subprocess.run(
            [BIN / words[0], *map(self.here, words[1:])], env=env, capture_output=True, check=False
        )
        return checked.returncode == 0

    def end(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait(100)

    def here(self, word: str) -> str:
        """The same word outside of a container."""
        word = word.replace("/run/secrets", str(self.folder / "secrets"))
        word = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", word)  # a variable of compose's, not set
        word = word.replace("0.0.0.0", "127.0.0.1").replace("bind * -::*", "bind 127.0.0.1")
        word = word.replace("dir /data", f"dir {self.folder}/data")
        word = word.replace("port 6379", f"port {self.ports['6379']}")
        word = word.replace("http://sandbox:", "http://127.0.0.1:")
        for inside, outside in self.ports.items():
            word = re.sub(rf"(?<=:){inside}\b|^{inside}$", str(outside), word)
        return word


def user_of_the_image() -> str:
    (user,) = re.findall(r"^USER (\d+):\1$", DOCKERFILE, re.M)
    return user


def as_user_of_the_image() -> list[str]:
    """What a command begins with that runs as the image's user; only root may do that."""
    user = user_of_the_image()
    return ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"]


def folders_of_the_image() -> dict[str, list[str]]:
    """What makes each folder that is for a volume: a new volume has its owner and its rights."""
    made = [words.split() for words in re.findall(r"install -d [^&\n]+", DOCKERFILE)]
    return {words[-1]: words for words in made}


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # as / is, for a user that is not root
        deployed = Deployment(Path(folder))
        yield deployed
        deployed.end()


def test_every_volume_of_our_services_is_a_folder_of_the_images_user() -> None:
    made, user = folders_of_the_image(), user_of_the_image()
    assert SERVICES["redis"]["volumes"] == ["redis-data:/data"]
    for name in OURS:
        for volume in SERVICES[name].get("volumes", []):
            source, target, *_ = volume.split(":")
            assert source in COMPOSE["volumes"], "a bound folder has the host's rights"
            assert ["-o", user, "-g", user] == made[target][2:6], f"{name}: {target}"


@pytest.mark.parametrize("secret", ["", None])
def test_redis_without_its_password_does_not_start_and_says_what_to_do(
    deployment: Deployment, secret: str | None
) -> None:
    file = deployment.folder / "secrets" / "redis_password"
    file.unlink()
    if secret is not None:
        file.write_text(secret)
    shell, option = SERVICES["redis"]["entrypoint"]
    script = deployment.here(SERVICES["redis"]["command"][0].replace("$$", "$"))
    started = subprocess.run(
        [shell, option, script], env=deployment.environment("redis"), text=True,
        capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert started.returncode == 1
    assert "make secrets" in started.stderr


def test_compose_says_to_make_the_secrets_and_finds_them_then(tmp_path: Path) -> None:
    for secret in COMPOSE["secrets"].values():
        assert secret["file"].startswith("${PENSTOCK_SECRETS:?run make secrets first}/")
    (tmp_path / ".env").write_text("REDIS_MAXMEMORY=2gb")
    for _ in range(2):
        subprocess.run(
            [sys.executable, ROOT / "deploy" / "make_secrets.py"], cwd=tmp_path, check=True
        )
    assert (tmp_path / ".env").read_text().splitlines() == [
        "REDIS_MAXMEMORY=2gb", "PENSTOCK_SECRETS=./secrets",
    ]  # fmt: skip
    for secret in COMPOSE["secrets"].values():
        assert (tmp_path / "secrets" / secret["file"].rpartition("/")[2]).read_text().strip()


def test_a_password_of_ones_own_is_in_the_url(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/redis_password").write_text("aB+/x@=\n")
    subprocess.run([sys.executable, ROOT / "deploy" / "make_secrets.py"], cwd=tmp_path, check=True)
    target = parse_redis_url((tmp_path / "secrets/redis_url").read_text())
    assert target.options == {"username": "default", "password": "aB+/x@="}


def test_the_images_user_can_read_the_secrets_whatever_the_umask(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "make_secrets.py"
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, umask=0o077)
    made = list((tmp_path / "secrets").iterdir())
    assert len(made) == len(COMPOSE["secrets"])
    assert {file.stat().st_mode & 0o777 for file in made} == {0o444}


def test_a_secret_whose_making_was_interrupted_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As a signal that nobody can catch."""

    def dies(file: Path, text: str) -> None:
        file.touch()
        raise Killed

    script = ROOT / "deploy" / "make_secrets.py"
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Path, "write_text", dies)
        runpy.run_path(str(script), run_name="__main__")
    subprocess.run([sys.executable, script], check=True)
    made = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert made.keys() == {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert all(made.values())


def test_only_their_owner_enters_the_folder_of_the_secrets(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir(mode=0o711)  # as an earlier release made it
    script = ROOT / "deploy" / "make_secrets.py"
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, umask=0o000)
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_a_health_check_of_a_service_loads_next_to_nothing() -> None:
    """Each runs every 15 seconds for as long as the service does."""
    program = (
        "import sys; sys.argv = ['penstock', 'health', 'http://127.0.0.1:1']\n"
        "from penstock.entry import main\n"
        "try:\n    main()\n"
        "except SystemExit as ended:\n    print(ended.code, 'click' in sys.modules)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )
    assert (ran.stdout, ran.stderr.count("\n")) == ("1 False\n", 1), ran.stderr


def test_the_image_is_compiled_for_a_user_who_can_write_nothing() -> None:
    (compiled,) = re.findall(r"^RUN python -m compileall ([^|]+)", DOCKERFILE, re.M)
    assert "--invalidation-mode unchecked-hash" in compiled, "a copy may change the files' times"
    assert 'get_path("stdlib")' in compiled
    assert "/opt/penstock/lib" in compiled


@pytest.mark.timeout(600)  # some twenty processes, one after the other
def test_every_service_starts_is_healthy_and_runs_a_program(deployment: Deployment) -> None:
    with ThreadPoolExecutor() as asking:
        assert not any(asking.map(deployment.healthy, OURS)), "healthy before it started"
    deployment.start("redis")
    until(lambda: deployment.healthy("redis"), "redis", within=100)
    others = [name for name in OURS if name != "redis"]
    with deployment.engine:
        for name in others:
            deployment.start(name)
        for name in others:
            until(lambda name=name: deployment.healthy(name), name, within=100)
    env = deployment.environment("worker")
    ran = subprocess.run(
        [BIN / "penstock", "run", "-"], input="print(6 * 7)", env=env, text=True,
        capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert ran.stdout == "42\n", ran.stderr


def test_redis_itself_is_told_to_stop(deployment: Deployment) -> None:
    deployment.start("redis")
    until(lambda: deployment.healthy("redis"), "redis", within=100)
    deployment.end()
    assert deployment.processes[0].returncode == 0, "it shuts down, and keeps its last second"
    assert processes_in(deployment.folder / "data") == []


def against_the_specification(file: Path) -> subprocess.CompletedProcess[str]:
    schema = ["--builtin-schema", "vendor.compose-spec"]
    return subprocess.run(
        [BIN / "check-jsonschema", *schema, file], capture_output=True, text=True, check=False
    )


def test_the_file_is_what_the_compose_specification_allows(tmp_path: Path) -> None:
    checked = against_the_specification(ROOT / "compose.yaml")
    assert checked.returncode == 0, checked.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((ROOT / "compose.yaml").read_text().replace("restart: ", "restarts: "))
    assert "'restarts'" in against_the_specification(wrong).stdout


@pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose client")
def test_the_client_reads_it_where_there_is_one(deployment: Deployment) -> None:
    shutil.copy(ROOT / "compose.yaml", deployment.folder)
    shutil.copytree(ROOT / "deploy", deployment.folder / "deploy")
    for profile in ([], ["--profile", "observe"], ["--profile", "gateway"]):
        subprocess.run(
            ["docker-compose", *profile, "config", "--quiet"], cwd=deployment.folder, check=True
        )


def test_what_refers_to_something_finds_it() -> None:
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= set(SERVICES), name
        assert set(service["networks"]) <= set(COMPOSE["networks"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            found = (ROOT / source).exists() if source[0] in "./" else source in COMPOSE["volumes"]
            assert found, f"{name}: {source}"
        told = [*service.get("command", []), *service.get("entrypoint", [])]
        told += service.get("environment", {}).values()
        read = set(re.findall(r"/run/secrets/(\w+)", " ".join(map(str, told))))
        assert read <= set(service.get("secrets", [])), f"{name} reads a secret it is not given"
    own = {one.split(":")[-1] for name in OURS for one in SERVICES[name].get("ports", [])}
    assert own == {"8889", "8890", "8893"}


def test_the_services_are_locked_down() -> None:
    assert set(OURS) == {"redis", "sandbox", "worker", "buffer", "gateway", "monitor"}
    for name, service in SERVICES.items():
        assert set(service) <= KNOWN_KEYS, name
        assert service["healthcheck"]["test"], name
        assert service["deploy"]["resources"]["limits"].keys() == {"memory", "pids"}, name
        assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), f"{name} is not pinned"
        for published in service.get("ports", []):
            assert published.startswith("127.0.0.1:"), f"{name} is published to everybody"
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys()
    for name in OURS:
        assert SERVICES[name]["read_only"] is True
        assert SERVICES[name]["cap_drop"] == ["ALL"]
    assert [n for n, s in SERVICES.items() if s.get("profiles") == ["observe"]] == [
        "prometheus", "grafana",
    ]  # fmt: skip


def test_no_secret_is_in_the_file_and_every_variable_is_a_setting() -> None:
    known = {name for model in settings_models() for name in variables(model)}
    for name in OURS:
        for key, value in SERVICES[name].get("environment", {}).items():
            assert key in known, key
            if re.search("TOKEN|PASSWORD|REDIS_URL", key):
                assert key.endswith("_FILE"), f"{name}: {key} is a secret in the file"
                assert value.removeprefix("/run/secrets/") in SERVICES[name]["secrets"]


def test_the_image_is_small_pinned_and_not_roots() -> None:
    lines = (ROOT / "Dockerfile").read_text()
    assert set(re.findall(r"^FROM (\S+)", lines, re.M)) == {"python:3.13.16-slim-trixie"}
    assert re.search(r"^USER (?!0\b)\d+", lines, re.M)
    assert re.search(r'^ENTRYPOINT \["penstock"\]', lines, re.M)
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", lines, re.M)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
    allowed = (ROOT / ".dockerignore").read_text()
    assert all(f"!{name}" in allowed for name in " ".join(copied).split())
    code = next(code for code in re.findall(r"python -c '([^']+)'", lines) if "ground" in code)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert os.access(found.stdout.strip(), os.X_OK)
    for name in OURS:
        command = SERVICES[name]["command"]
        assert SERVICES[name].get("entrypoint") or command[0] in COMMANDS


def exported() -> set[str]:
    """Every series of Penstock, and of a scrape itself."""
    found = {"up"}
    for name, kind, *_ in reference.metrics():
        steps = {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
        found |= steps if kind == "histogram" else {name}
    return found


def test_dashboard_and_alerts_ask_only_for_figures_that_there_are() -> None:
    known = exported()
    for text in (*promql.shown(), *(rule["expr"] for rule in promql.alerts())):
        asked = {one.name for one in promql.selectors(text)}
        assert asked, text
        assert asked <= known, text


def test_an_expression_that_is_none_is_refused() -> None:
    """So that the test above can fail."""
    with pytest.raises(ValueError, match="parenthesis"):
        list(promql.selectors("sum by (rate(penstock_queue_depth"))
    asked = promql.selectors("rate(no_such_total[5m]) / (1 + no_other > 0)")
    assert {one.name for one in asked}.isdisjoint(exported())


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = promql.alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    labels = {name: set(re.findall(r"\w+", text)) for name, _, text, _ in reference.metrics()}
    labels["up"] = {"job", "instance"}  # Prometheus' own
    for rule in rules:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}, rule
        assert rule["labels"]["severity"] in ("page", "look")
        assert rule["annotations"].keys() == {"summary", "do"}
        said = re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values()))
        for one in promql.selectors(rule["expr"]):
            assert set(said) <= labels.get(one.name or "", set()), rule["alert"]
        named = re.findall(r"\bpenstock ([a-z]+)(?: ([a-z]+))?", rule["annotations"]["do"])
        assert [words for words in named if not is_command(*words)] == [], rule["alert"]
    mounted = " ".join(SERVICES["prometheus"]["volumes"])
    config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    assert "./deploy/alerts.yml:/etc/prometheus/alerts.yml:ro" in mounted


def is_command(name: str, part: str) -> bool:
    if name not in COMMANDS:
        return False
    found = importlib.import_module(COMMANDS[name]).command
    return not isinstance(found, click.Group) or part in found.commands


def test_each_variable_of_the_dashboard_is_a_label_of_what_it_is_read_from() -> None:
    labels = {name: labels for name, _, labels, _ in reference.metrics()}
    for variable in promql.board()["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
        assert asked is not None
        assert f"`{asked[2]}`" in labels[asked[1]]
        assert any(f"${variable['name']}" in json.dumps(one) for one in promql.board()["panels"])


def test_prometheus_scrapes_every_service_with_its_token() -> None:
    scraped = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())["scrape_configs"]
    fixed = [job["static_configs"][0]["targets"][0] for job in scraped if "static_configs" in job]
    asked = [job["dns_sd_configs"][0] for job in scraped if "dns_sd_configs" in job]
    targets = {*fixed, *(f"{one['names'][0]}:{one['port']}" for one in asked)}
    assert targets == {"monitor:8890", "buffer:8889", "sandbox:8080", "gateway:8893"}
    optional = {name for one in asked for name in one["names"]}
    assert optional == {name for name in optional if "profiles" in SERVICES[name]}
    for name in (target.partition(":")[0] for target in targets):
        assert SERVICES[name]["environment"]["PENSTOCK_HTTP_HOSTS"] == name
    for job in scraped:
        secret = job["authorization"]["credentials_file"].removeprefix("/run/secrets/")
        assert secret in SERVICES["prometheus"]["secrets"]
