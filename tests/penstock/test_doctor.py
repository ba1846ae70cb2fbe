"""`penstock doctor`, check by check, and as a whole."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import fakeredis
import pytest

from buffer import RolloutBuffer, TaskConfig
from ground import Client, EmbeddedServer, connect
from ground.redis.url import parse_redis_url
from ground.server.binary import bundled_server
from limiter import TokenBucket
from penstock.doctor import require_own_packages
from penstock.doctor.command import table_of
from penstock.doctor.finding import Finding, fail, ok, warn
from penstock.doctor.packages import (
    NAMES,
    PackageClash,
    _owners,
    check_names,
    check_python,
    check_versions,
)
from penstock.doctor.redis import check_server
from penstock.doctor.stored import check_fleet, check_queues
from tests.harness import commands
from tests.harness.servers import PrivateRedis
from tests.penstock.commands import run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("redis"), binary=bundled_server()) as running:
        yield running


def doctor(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    return commands.run(["doctor", *arguments], env=clean | (env or {}), cwd=cwd, timeout=60)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.about: finding for finding in findings}


def test_a_fit_machine_is_ready_and_stdout_is_json_alone(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    result = doctor("--json", "--redis-url", server.url, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    verdicts = {one["about"]: one["verdict"] for one in report["findings"]}
    assert report["ready"] is True
    assert verdicts["reached"] == verdicts["version"] == verdicts["persistence"] == "ok"
    assert verdicts["package names"] == verdicts["clock"] == "ok"
    assert server.url.rpartition("@")[0] not in result.stdout, "a password was shown"


def test_without_a_url_it_names_the_server_it_would_start_and_starts_none(tmp_path: Path) -> None:
    result = doctor("--json", cwd=tmp_path)
    assert result.returncode == 0, result.stdout
    facts = {one["about"]: one["fact"] for one in json.loads(result.stdout)["findings"]}
    assert facts["embedded"].startswith(("Valkey ", "Redis "))
    assert facts["data directory"] == f"{tmp_path}/.penstock, no server is running on it"
    assert list(tmp_path.iterdir()) == []


def test_data_that_the_server_found_here_cannot_read_is_not_overlooked(
    tmp_path: Path,
) -> None:
    (tmp_path / "appendonlydir").mkdir()
    old = tmp_path / "redis-server"
    old.write_text("#!/bin/sh\necho Redis server v=6.2.14 sha=0\n")
    old.chmod(0o755)
    result = doctor(
        "--json", env={"PENSTOCK_DATA_DIR": str(tmp_path), "PENSTOCK_REDIS_SERVER": str(old)}
    )
    findings = {one["about"]: one for one in json.loads(result.stdout)["findings"]}
    assert result.returncode == 1
    assert "cannot read what a newer server wrote" in findings["embedded"]["fact"]
    assert "PENSTOCK_REDIS_SERVER" in findings["embedded"]["remedy"]


@pytest.mark.parametrize(
    "binary",
    [
        b"\x7fELF of another machine",
        b"#!/bin/sh\necho 'libssl.so.3: cannot open shared object file' >&2\nexit 127",
        b"#!/bin/sh\n",
    ],
    ids=["of another machine", "without a library", "no server"],
)
def test_a_server_found_here_that_cannot_be_run_is_told(tmp_path: Path, binary: bytes) -> None:
    foreign = tmp_path / "redis-server"
    foreign.write_bytes(binary)
    foreign.chmod(0o755)
    result = doctor("--json", env={"PENSTOCK_REDIS_SERVER": str(foreign)}, cwd=tmp_path)
    findings = {one["about"]: one for one in json.loads(result.stdout)["findings"]}
    assert (result.returncode, findings["embedded"]["verdict"]) == (1, "fail")
    assert f"{foreign} cannot be run" in findings["embedded"]["fact"]


def test_a_running_embedded_server_is_found_and_examined(server: EmbeddedServer) -> None:
    result = doctor("--json", env={"PENSTOCK_DATA_DIR": str(server.folder)})
    facts = {one["about"]: one["fact"] for one in json.loads(result.stdout)["findings"]}
    assert facts["data directory"] == f"{server.folder}, its server is running"
    assert facts["persistence"] == "append-only file"


def test_a_failed_check_says_what_to_do_and_exits_with_1() -> None:
    result = doctor("--redis-url", "redis://127.0.0.1:1/0")
    assert result.returncode == 1
    assert "fail     server" in result.stdout
    assert "PENSTOCK_REDIS_URL: redis://127.0.0.1:1/0 does not answer" in result.stdout
    assert "Not ready: 1 failed" in result.stdout


@pytest.mark.parametrize(("key", "about"), [("rq:queues", "server"), ("rq:workers", "fleet")])
def test_a_redis_that_breaks_off_or_refuses_is_one_line_of_a_whole_report(
    real_redis: Client, shared_server: PrivateRedis, key: str, about: str
) -> None:
    real_redis.set(key, "of another program")
    result = doctor("--json", "--redis-url", shared_server.url)
    assert result.returncode == 1, result.stderr
    findings = json.loads(result.stdout)["findings"]
    (failed,) = [one for one in findings if one["verdict"] == "fail"]
    assert failed["about"] == about
    assert "WRONGTYPE" in failed["fact"]
    assert {"python", "redis", "sandbox"} <= {one["section"] for one in findings}


@pytest.mark.parametrize("form", ["redis+cluster://{}", "redis+sentinel://{}/mymaster"])
def test_nobody_where_a_cluster_or_sentinel_should_be_is_one_line(form: str) -> None:
    result = doctor("--json", "--redis-url", form.format("127.0.0.1:1"))
    assert (result.returncode, result.stderr) == (1, "")
    facts = {one["about"]: one["fact"] for one in json.loads(result.stdout)["findings"]}
    assert facts["server"].startswith(f"PENSTOCK_REDIS_URL: {form.format('127.0.0.1:1')}")
    assert "<" not in facts["server"], "a client's innards were shown"


def test_a_setting_that_cannot_be_read_exits_with_2() -> None:
    result = doctor(env={"PENSTOCK_REDIS_PORT": "99999"})
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("penstock: PENSTOCK_REDIS_PORT: ")
    assert result.stderr.count("\n") == 1


def test_quiet_shows_only_what_is_not_well() -> None:
    result = doctor("--quiet", "--redis-url", "redis://127.0.0.1:1/0", "--json")
    findings = json.loads(result.stdout)["findings"]
    assert {"server"} <= {one["about"] for one in findings}
    assert "ok" not in {one["verdict"] for one in findings}


@pytest.mark.parametrize(
    ("setting", "value", "about", "verdict", "words"),
    [
        ("appendonly", "no", "persistence", "warn", "a restart loses all jobs"),
        ("save", "60 1", "persistence", "warn", "snapshots only"),
        ("maxmemory-policy", "allkeys-lru", "settings", "warn", "while there is no maxmemory"),
        ("maxmemory", "100mb", "settings", "ok", "noeviction, maxmemory 105 MB"),
    ],
)
def test_settings_of_the_server_are_judged(
    tmp_path: Path, setting: str, value: str, about: str, verdict: str, words: str
) -> None:
    config = [f"{setting} {value}"] + (["appendonly no"] if setting == "save" else [])
    with EmbeddedServer(tmp_path, binary=bundled_server(), config=config) as odd:
        found = by_name(list(check_server(odd.target)))[about]
    assert (found.verdict, words in found.fact) == (verdict, True), found


def test_an_evicting_server_fails(tmp_path: Path) -> None:
    config = ["maxmemory 100mb", "maxmemory-policy allkeys-lru"]
    with EmbeddedServer(tmp_path, binary=bundled_server(), config=config) as evicting:
        found = by_name(list(check_server(evicting.target)))["settings"]
    assert found.verdict == "fail"
    assert "set maxmemory-policy noeviction" in found.fact


def test_a_full_server_is_not_ready_and_its_gates_are_shown_all_the_same(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, binary=bundled_server()) as server:
        client = connect(server.target)
        gate = TokenBucket(client, "code", limit=2)
        gate.sync.status()
        client.config_set("maxmemory", 1)
        found = by_name(list(check_server(server.target)))["writes"]
        assert (found.verdict, "takes no writes" in found.fact) == ("fail", True)
        said = refused(run("health", "redis", PENSTOCK_REDIS_URL=server.url))
        assert "takes no writes" in said
        assert gate.sync.status().limit == 2
        client.config_set("maxmemory", 0)
        assert by_name(list(check_server(server.target)))["writes"].verdict == "ok"
        assert run("health", "redis", PENSTOCK_REDIS_URL=server.url).returncode == 0


def refused(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 1
    return result.stderr


def test_a_user_who_may_not_run_scripts_is_told_so(
    server: EmbeddedServer,
) -> None:
    admin = connect(server.target)
    admin.execute_command("ACL", "SETUSER", "clerk", "on", ">pw", "~*", "+@all", "-@scripting")
    url = f"redis://clerk:pw@{server.url.rpartition('@')[2]}"
    result = doctor("--json", "-q", env={"PENSTOCK_REDIS_URL": url})
    findings = {one["about"]: one for one in json.loads(result.stdout)["findings"]}
    assert result.returncode == 1
    assert "too few permissions" in findings["server"]["fact"]
    admin.close()


@pytest.mark.parametrize("words", [["doctor"], ["limits", "ls"], ["top", "--once"]])
def test_a_user_without_our_keys_is_told_what_it_needs(server: EmbeddedServer, words) -> None:
    admin = connect(server.target)
    rules = ("on", ">pw", "~rq:*", "&*", "+@all", "-@admin", "-@dangerous", "+info")
    admin.execute_command("ACL", "SETUSER", "keyless", *rules)
    admin.close()
    url = f"redis://keyless:pw@{server.url.rpartition('@')[2]}"
    result = run(*words, PENSTOCK_REDIS_URL=url)
    said = " ".join((result.stdout + result.stderr).split())
    assert "gives its user too few permissions" in said
    assert "penstock:* and rq:*: docs/guide/redis.md#give-penstock-a-user" in said
    if words == ["doctor"]:
        assert (result.returncode, result.stderr) == (1, "")
        assert "Not ready: 1 failed" in said, "the table is there"


def test_a_cluster_is_examined_and_said_to_be_no_place_for_queues(redis_cluster) -> None:
    found = by_name(list(check_server(redis_cluster.target)))
    assert (found["reached"].verdict, found["clock"].verdict) == ("ok", "ok")
    assert found["queues"].verdict == "warn"
    assert "one primary" in found["queues"].remedy
    assert found["nodes"].remedy == "set cluster-require-full-coverage no on every node"
    for node in redis_cluster.nodes:
        node.ask("CONFIG", "SET", "cluster-require-full-coverage", "no")
    assert "nodes" not in by_name(list(check_server(redis_cluster.target)))


def test_a_node_of_a_cluster_that_is_named_as_a_primary_fails(redis_cluster) -> None:
    host, port = redis_cluster.target.nodes[0]
    found = by_name(list(check_server(parse_redis_url(f"redis://{host}:{port}"))))
    assert found["settings"].verdict == "fail"
    assert "is a node of a Redis Cluster" in found["settings"].fact


def test_the_primary_behind_a_sentinel_is_examined(sentinel_pair) -> None:
    found = by_name(list(check_server(sentinel_pair.target)))
    assert {"reached", "version", "clock"} <= set(found)
    assert found["settings"].verdict == "ok"


def test_a_queue_whose_ends_write_and_read_differently_is_found(server: EmbeddedServer) -> None:
    from rq import Queue, SimpleWorker
    from rq.serializers import DefaultSerializer, JSONSerializer

    from worker.jobs import run_code

    client = connect(server.target)
    ours = {"connection": client, "serializer": JSONSerializer}
    Queue("read", **ours).enqueue(run_code, {"code": "print(1)"})
    Queue("others", connection=client, serializer=DefaultSerializer).enqueue(len, "pickled")
    found = by_name(list(check_server(server.target)))
    assert found["serializer"].verdict == "ok"
    SimpleWorker(["read"], connection=client, serializer=DefaultSerializer).work(burst=True)
    Queue("written", connection=client, serializer=DefaultSerializer).enqueue(run_code, {})
    found = by_name(list(check_server(server.target)))
    assert "serializer" not in found
    assert (found["queue read"].verdict, found["queue written"].verdict) == ("warn", "warn")
    assert "--serializer rq.serializers.JSONSerializer read" in found["queue read"].remedy
    assert "is not JSON" in found["queue written"].fact
    client.flushall()
    client.close()


def test_many_queues_are_read_in_few_round_trips(real_redis: Client) -> None:
    for n in range(41):
        real_redis.sadd("rq:queues", f"rq:queue:q{n}")
        real_redis.rpush(f"rq:queue:q{n}", f"job{n}")
        row = {"description": "worker.jobs.run_code()", "data": "pickled" if n > 38 else "[]"}
        real_redis.hset(f"rq:job:job{n}", mapping=row)
    before: Any = real_redis.info("stats")
    found = list(check_queues(real_redis))
    after: Any = real_redis.info("stats")
    assert [one.about for one in found] == ["queue q39", "queue q40"]
    assert after["total_reads_processed"] - before["total_reads_processed"] < 41


def test_a_policy_that_drops_slow_problems_is_found(server: EmbeddedServer) -> None:
    buffer = RolloutBuffer(server.target, "math", TaskConfig(group_size=1)).sync
    buffer.config()
    client = connect(server.target)
    made = {"delivered_ms": 20_000, "delivered_timed": 10, "dropped_timed": 2}
    for dropped, warned in ((5_800, False), (6_200, True)):
        client.hset("penstock:buffer:{default/math}:state", mapping={**made, "dropped_ms": dropped})
        found = by_name(list(check_fleet(server.target, "default")))
        assert ("biased" in found) is warned
    assert found["biased"].verdict == "warn"
    assert "task 'math': discarded groups took" in found["biased"].fact
    assert "when_old" in found["biased"].remedy
    buffer.close()
    client.flushall()
    client.close()


@pytest.mark.parametrize(("skew", "verdict"), [(0.0, "ok"), (-30.0, "warn"), (30.0, "warn")])
def test_a_clock_that_is_off_is_told_with_its_distance(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, skew: float, verdict: str
) -> None:
    from penstock.doctor import redis as checks

    there = time.time
    monkeypatch.setattr(checks.time, "time", lambda: there() + skew)
    found = by_name(list(check_server(server.target)))["clock"]
    assert found.verdict == verdict
    if skew:
        assert found.fact.startswith(("30.", "29."))
        assert found.fact.endswith(
            "ahead of this machine's" if skew < 0 else "behind this machine's"
        )
        assert "NTP" in found.remedy


def test_a_server_that_says_little_is_warned_about_not_refused() -> None:
    from ground.redis.connect import target_of

    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    found = by_name(list(check_server(target_of(client))))
    assert found["version"].verdict == "warn"
    assert found["reached"].verdict == "ok"


def test_every_package_name_is_ours_here() -> None:
    require_own_packages()
    (found,) = check_names()
    assert found.verdict == "ok"
    assert found.fact.startswith(", ".join(NAMES))


def test_a_name_that_another_distribution_installed_fails_and_names_it() -> None:
    found = by_name(list(check_names({"worker": ["penstock-rl", "cf-worker"]})))["package worker"]
    assert (found.verdict, found.fact) == ("fail", "also installed by cf-worker")
    assert found.remedy.startswith("pip uninstall cf-worker")


def test_what_others_installed_by_our_names_is_found_as_python_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "cf-worker": ("RECORD", "worker/__init__.py,,\nworker/data.json,,\n"),
        "deep": ("RECORD", "deep/a.py,,\ndeep/limiter/__init__.py,,\njail/inner/a.py,,\n"),
        "one-file": ("RECORD", "buffer.py,,\nworkers/__init__.py,,\n"),
        "old": ("top_level.txt", "gateway\nanother\n"),
    }
    for name, (file, text) in files.items():
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / file).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = _owners()
    assert found == {
        "worker": ["cf-worker"], "jail": ["deep"], "buffer": ["one-file"], "gateway": ["old"],
    }  # fmt: skip
    everything = metadata.packages_distributions()
    assert found == {name: everything[name] for name in NAMES if name in everything}
    with pytest.raises(PackageClash, match="package buffer: also installed by one-file"):
        require_own_packages()


def test_the_other_project_called_penstock_is_recognised() -> None:
    owners = {"penstock": ["penstock-rl", "penstock"]}
    found = by_name(list(check_names(owners)))["package penstock"]
    assert found.verdict == "fail"
    assert "another project (Penstock is penstock-rl)" in found.fact
    assert found.remedy.startswith(
        "pip uninstall penstock, then pip install --force-reinstall penstock-rl"
    )


def test_packages_that_were_never_installed_are_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.doctor.packages.DISTRIBUTION", "penstock-nowhere")
    found = by_name(list(check_versions()))
    assert found["penstock"].verdict == "ok"
    assert found["penstock-nowhere"].verdict == "warn"
    assert found["penstock-nowhere"].remedy.startswith("pip install --no-deps --editable ")


def test_a_folder_of_that_name_where_one_stands_is_warned_about(tmp_path: Path) -> None:
    (tmp_path / "buffer.py").touch()
    (tmp_path / "limiter").mkdir()  # not a package: shadows nothing
    found = by_name(list(check_names({}, tmp_path)))
    assert found["package buffer"].verdict == "warn"
    assert str(tmp_path / "buffer.py") in found["package buffer"].fact
    assert set(found) == {"package buffer"}


def test_a_file_named_as_a_module_that_others_import_is_warned_about(tmp_path: Path) -> None:
    for name in ("redis.py", "json.py", "mine.py", "click.txt"):
        (tmp_path / name).touch()
    (tmp_path / "rq").mkdir()
    (tmp_path / "rq" / "__init__.py").touch()
    found = by_name(list(check_names({}, tmp_path)))["working folder"]
    assert found.verdict == "warn"
    assert found.fact.startswith("json.py, redis.py, rq: ")
    (tmp_path / "empty").mkdir()
    assert "working folder" not in by_name(list(check_names({}, tmp_path / "empty")))


def test_a_name_taken_earlier_on_the_path_stops_a_service_as_it_starts(tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").touch()
    result = subprocess.run(
        [sys.executable, "-m", "penstock", "demo"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith(f"penstock: package worker: imported from {tmp_path}/worker")


def test_python_is_judged_by_its_version() -> None:
    assert check_python((3, 10)).verdict == "fail"
    assert check_python((3, 11)).verdict == "ok"
    assert check_python((3, 99)).verdict == "warn"


def test_every_direct_dependency_is_examined() -> None:
    found = by_name(list(check_versions()))
    assert {"penstock", "redis", "rq", "click", "rich", "pydantic"} <= set(found), (
        "what extras bring is examined if it is here"
    )
    assert {f.verdict for f in found.values()} <= {"ok", "warn"}


def isolation(result: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert result.returncode == 0, result.stderr
    findings: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    return next(found for found in findings if found["about"] == "isolation")


def test_the_sandbox_is_attacked_and_its_level_told() -> None:
    found = isolation(doctor("--json"))
    if found["verdict"] != "ok":
        pytest.skip(f"this machine has no namespaces: {found['fact']}")
    assert found["fact"].startswith("level ns")
    assert "all contained" in found["fact"]


def test_a_weaker_level_that_is_named_is_warned_about() -> None:
    given = {"PENSTOCK_SANDBOX_LEVEL": "none", "PENSTOCK_SANDBOX_PYTHON": "/usr/bin/python3"}
    found = isolation(doctor("--json", env=given))
    if "unavailable" in found["fact"]:
        pytest.skip("/usr/bin/python3 is not there")
    assert (found["verdict"], found["fact"]) == ("warn", "level none: programs run unconfined")
    assert "PENSTOCK_SANDBOX_LEVEL" in found["remedy"]


def test_a_level_that_does_not_exist_is_refused_by_name() -> None:
    result = doctor(env={"PENSTOCK_SANDBOX_LEVEL": "docker"})
    assert result.returncode == 2
    assert "PENSTOCK_SANDBOX_LEVEL" in result.stderr


NO_NAMESPACES = """
import os, sys
from tests.jail import restricted
restricted.no_namespaces()
os.execv(sys.argv[1], [sys.argv[1], "doctor", "--json"])
"""


def test_a_kernel_that_refuses_namespaces_is_a_warning_that_names_the_setting() -> None:
    refused = subprocess.run(
        [sys.executable, "-c", NO_NAMESPACES, Path(sys.executable).with_name("penstock")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if "unshare" in refused.stderr:
        pytest.skip(f"no user namespaces here at all: {refused.stderr.strip()}")
    found = isolation(refused)
    assert found["verdict"] == "warn"
    assert "user.max_user_namespaces=15000" in found["remedy"]


def test_the_table_fits_a_narrow_terminal() -> None:
    report = {"python": [ok("Python", "3.11"), fail("rq", "absent", "pip install " + "rq " * 40)]}
    table = table_of(report | {"redis": [warn("clock", "late", "run NTP")]})
    lines = [click.unstyle(line) for line in table.lines(60)]
    assert all(len(line) <= 60 for line in lines), lines
    assert "ok      Python  3.11" in lines


# Where it is run from


def test_a_folder_that_this_user_may_not_look_into_is_no_trouble(tmp_path: Path) -> None:
    """As in /tmp, which has folders of root's, and in / on many machines."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        here.chmod(0o755)
        (here / "random").mkdir(mode=0)
        (here / "worker").mkdir(mode=0)
        for place in (here, here / "random", here / "gone"):
            assert as_an_ordinary_user(lambda place=place: verdicts_at(place)) == ["ok"]


def test_the_working_folder_is_not_listed(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "random.py").touch()
    monkeypatch.setattr(os, "listdir", None)
    monkeypatch.setattr(os, "scandir", None)
    assert verdicts_at(tmp_path) == ["ok", "warn"]


def verdicts_at(place: Path) -> list[str]:
    return [finding.verdict for finding in check_names({}, place)]


def as_an_ordinary_user(what: Callable[[], list[str]]) -> list[str]:
    """Its answer in a child that is not root."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            said = json.dumps(what())
        except BaseException as failure:  # noqa: BLE001 - it is the parent's to show
            said = json.dumps([repr(failure)])
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(text)
    return found


def test_a_program_beside_a_worker_file_of_its_own_imports_ours_by_an_alias(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text("OWN = True\n")

    def said(program: str) -> str:
        words = [sys.executable, "-c", program]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout

    found = "from penstock.worker import CodeQueue as ours; import worker; "
    found += "print(worker.CodeQueue is ours)"
    assert said(found) == "True\n"
    late = "import worker\ntry: import penstock.worker\nexcept ImportError as why: print(why)"
    assert "Import penstock.worker first, or rename that module" in said(late)
