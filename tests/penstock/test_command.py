"""The `penstock` command as a process: how it ends, and where it writes."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.text import Text

import ground
from penstock.cli import COMMANDS, command
from penstock.options import console
from penstock.tables import Table, cells_of
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, fill_disk_of, server_that_may_fail_to_save
from tests.harness.terminal import Terminal
from tests.penstock.commands import HERE, clean, processes_of, processes_with, refusal, run, start

PENSTOCK_SOURCE = Path(__file__).parents[2] / "penstock"


def crew_of(folder: Path) -> list[Path]:
    """The demo's live workers, as /proc has them."""
    return [Path("/proc", pid) for pid, words in processes_with(folder) if "demo.crew" in words]


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Temporary files of commands go here; nothing of them may be left."""
    with tempfile.TemporaryDirectory(prefix="t-") as short:  # sockets' paths are short
        folder = Path(short)
        monkeypatch.setenv("TMPDIR", short)
        yield folder
        until(lambda: processes_of(folder) == [], f"processes left: {processes_of(folder)}")
        assert [p.name for p in folder.glob("penstock-*")] == []


def until(holds: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


# How it speaks


def test_every_subcommand_teaches_by_example() -> None:
    for path, _ in subcommands(command):
        result = CliRunner().invoke(command, [*path.split(), "--help"], prog_name="penstock")
        assert result.exit_code == 0
        assert path == "version" or f"  penstock {path}" in result.output, path
    assert set(COMMANDS) <= set(run("--help").stdout.split())


@pytest.mark.parametrize("words", [("top", "--every"), ("run", "-", "--timeout")])
@pytest.mark.parametrize("seconds", ["nan", "inf"])
def test_seconds_are_a_finite_number(words: tuple[str, ...], seconds: str) -> None:
    refused = CliRunner().invoke(command, [*words, seconds])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert f"'{seconds}' is no number of seconds" in refused.stderr


def test_every_listing_is_json_if_asked() -> None:
    lists = {"demo", "doctor", "run", "sandbox selftest", "top"}
    for path, found in subcommands(command):
        if found.name == "ls" or path in lists:
            assert "--json" in {name for option in found.params for name in option.opts}, path
            lists.discard(path)
    assert not lists


def subcommands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        yield f"{path} {name}".strip(), found
        if isinstance(found, click.Group):
            yield from subcommands(found, f"{path} {name}".strip())


def test_a_shell_completes_subcommands_and_options() -> None:
    assert "_PENSTOCK_COMPLETE=bash_complete" in run(_PENSTOCK_COMPLETE="bash_source").stdout
    asked = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    offered = run(COMP_WORDS="penstock ", **asked).stdout
    assert {line.partition(",")[2] for line in offered.splitlines()} == set(COMMANDS)
    offered = run(COMP_WORDS="penstock run --t", **asked | {"COMP_CWORD": "2"}).stdout
    assert offered == "plain,--timeout\n"


def test_version_is_data_on_stdout() -> None:
    assert run("--version").stdout.startswith("penstock 0.")
    assert run("version").stdout.startswith("penstock 0.")


def test_the_benchmarks_of_a_clone_are_a_subcommand() -> None:
    assert {"gates", "queue", "buffer"} <= set(run("bench", "--list").stdout.split())
    refused = run("bench", "frobnicate", "--quick")
    assert refused.returncode == 2
    assert "no suite 'frobnicate'" in refused.stderr


def test_no_colours_where_no_terminal_reads() -> None:
    assert "\x1b" not in run("doctor").stdout


def test_a_terminal_gets_colours_unless_it_says_no(tmp_path: Path) -> None:
    colour = re.compile(r"\x1b\[(\d+;)*(3[0-8]|9[0-7])(;\d+)*m")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "NO_COLOR"))}
    for said, more in ((True, {}), (False, {"NO_COLOR": "1"})):
        env = clean | {"PENSTOCK_REDIS_URL": "redis://127.0.0.1:1"} | more
        with Terminal([PENSTOCK, "doctor"], env) as terminal:
            assert terminal.ends() == 1
        assert bool(colour.search(terminal.said)) is said, terminal.said


def test_names_in_a_table_are_shown_as_they_are_and_steer_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("group")
    table.add("[/bold] :skull: \x1b]0;owned\x07\nb")
    table.show()
    console().print(Text("a\x9b2J"))
    shown = capsys.readouterr().out
    assert r"[/bold] :skull: \u001b]0;owned\u0007 b" in shown
    assert r"a\u009b2J" in shown


def test_a_table_folds_its_widest_columns_at_the_width_of_a_terminal_and_is_else_whole() -> None:
    table = Table("name", "held", "why", right=("held",), whole=("name",))
    table.add("a-name-that-is-to-be-copied", "7 s", "many words " * 5 + "你好" * 6)
    (heading, row) = map(click.unstyle, table.lines(math.inf))
    assert heading.split() == ["name", "held", "why"]
    assert "你好" * 6 in row
    narrow = [click.unstyle(line) for line in table.lines(60)]
    assert all(cells_of(line) <= 60 for line in narrow)
    assert narrow[1].startswith("a-name-that-is-to-be-copied   7 s  many words")
    assert "".join(narrow).count("你") == 6


def test_a_hostile_queue_or_group_reaches_the_terminal_as_text(real_redis, shared_server) -> None:
    real_redis.sadd("rq:queues", "rq:queue:\x1b[2Jqueue")
    real_redis.rpush("rq:queue:\x1b[2Jqueue", "job")
    url = {"PENSTOCK_REDIS_URL": shared_server.url}
    seen = run("top", "--once", **url)
    assert r"\u001b[2Jqueue" in seen.stdout
    absent = run("groups", "show", "\x1b[2Jgroup", **url)
    refused = run("worker", "--gate", "\x1b[2Jgate", **url)
    assert "\x1b" not in seen.stdout + seen.stderr + absent.stderr + refused.stderr


def test_no_console_of_ours_shows_names_unlike_the_others() -> None:
    """rich's own would read markup in them, and hand on escapes."""
    files = (PENSTOCK_SOURCE).rglob("*.py")
    made = {file for file in files if re.search(r"\bConsole\((?!\):)", file.read_text())}
    assert made == {PENSTOCK_SOURCE / "demo" / "command.py"}, "the demo's names are its own"


def test_a_redis_whose_disk_is_full_is_one_sentence(tmp_path: Path) -> None:
    with server_that_may_fail_to_save(tmp_path / "redis") as server:
        url = {"PENSTOCK_REDIS_URL": server.url}
        assert run("limits", "set", "code", "--gate-limit", "3", **url).returncode == 0
        fill_disk_of(server)
        for command in (["limits", "set", "code", "--gate-limit", "4"],
                        ["worker", "--burst", "--sandbox", "local"],
                        ["groups", "requeue", "g"]):  # fmt: skip
            said = run(*command, **url).stderr.splitlines()
            assert "MISCONF" in said[-1], said
            assert said[-1].startswith("penstock: ")


def test_an_unknown_subcommand_exits_with_2() -> None:
    result = run("frobnicate")
    assert (result.returncode, result.stdout) == (2, "")
    assert "No such command 'frobnicate'" in result.stderr
    assert "No such command 'tpo'. Did you mean 'top'?" in run("tpo").stderr


def test_a_variable_that_only_resembles_a_setting_is_told() -> None:
    result = run("health", "nothing", PENSTOCK_BUFER_PORT="1", PENSTOCK_OF_OURS="2")
    assert result.stderr.startswith(
        "penstock: PENSTOCK_BUFER_PORT is not a setting; did you mean PENSTOCK_BUFFER_PORT?\n"
    )
    assert "PENSTOCK_OF_OURS" not in result.stderr
    said = run("health", "nothing", REDIS_URL="redis://h").stderr
    assert said.startswith("penstock: REDIS_URL is not read; did you mean PENSTOCK_REDIS_URL?\n")
    named = run("health", "nothing", REDIS_URL="redis://h", PENSTOCK_REDIS_URL="redis://h")
    assert "REDIS_URL is not read" not in named.stderr
    assert "no setting" not in run("health", "nothing", PENSTOCK_MONITOR_TOKEN_FILE="x").stderr


@pytest.mark.parametrize(
    ("words", "usual"),  # 3: nothing has used this Redis
    [("version", 0), ("doctor --help", 0), ("limits ls --json", 0), ("top --once", 3)],
)
@pytest.mark.parametrize("closed", [">&-", "<&-", ">/dev/full"])
def test_a_stream_that_is_closed_or_full_is_no_traceback(
    shared_server: PrivateRedis, real_redis: ground.Client, words: str, closed: str, usual: int
) -> None:
    full = closed == ">/dev/full"
    given = {"PENSTOCK_REDIS_URL": shared_server.url}
    result = subprocess.run(
        ["sh", "-c", f'"$0" {words} {closed}', PENSTOCK],
        env=os.environ | given, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == (1 if full else usual), result.stderr
    if full:
        (said,) = result.stderr.splitlines()
        assert said.startswith("penstock: [Errno 28] No space left on device")
    else:
        assert "Traceback" not in result.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    with subprocess.Popen(
        [PENSTOCK, "doctor"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as p:
        assert p.stdout is not None
        assert p.stderr is not None
        p.stdout.close()
        assert p.stderr.read() == b""
        assert p.wait() == 1


def test_options_stand_before_or_after_the_subcommand_and_win_over_the_environment() -> None:
    for arguments in (("--run", "a/b", "doctor"), ("doctor", "--run", "a/b")):
        assert refusal(run(*arguments, PENSTOCK_RUN="fine")).startswith("--run (PENSTOCK_")


# Bad input: one sentence that names the setting


def test_a_wrong_url_is_refused(scratch: Path) -> None:
    assert refusal(run("demo", "--redis-url", "localhost")).startswith("--redis-url (PENSTOCK_")


def test_a_server_that_is_not_there_is_refused(scratch: Path) -> None:
    said = refusal(run("demo", PENSTOCK_REDIS_URL="redis://127.0.0.1:1"))
    assert said.startswith("PENSTOCK_REDIS_URL: redis://127.0.0.1:1/0 does not answer")


def test_a_wrong_password_is_refused_and_not_shown(
    scratch: Path, private_redis: Callable[..., PrivateRedis]
) -> None:
    server = private_redis(config=["user default on >right ~* &* +@all"])
    said = refusal(run("demo", PENSTOCK_REDIS_URL=server.url.replace("//", "//:wr0ng@")))
    assert said.startswith("PENSTOCK_REDIS_URL: ")
    assert "password" in said
    assert "wr0ng" not in said


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (["replicaof 127.0.0.1 1", "replica-serve-stale-data yes"], "read-only replica"),
        (["maxmemory 100mb", "maxmemory-policy allkeys-lru"], "set maxmemory-policy noeviction"),
    ],
)
def test_a_server_that_would_lose_state_is_refused(
    scratch: Path, private_redis: Callable[..., PrivateRedis], config: list[str], words: str
) -> None:
    server = private_redis(config=config)
    said = refusal(run("demo", PENSTOCK_REDIS_URL=server.url))
    assert said.startswith("PENSTOCK_REDIS_URL: ")
    assert words in said


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """The URL of something that gives one answer to everything, as a server in trouble does."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            while True:
                try:
                    caller, _ = door.accept()
                except OSError:
                    return
                with caller:
                    while asked := caller.recv(65536):
                        caller.sendall(reply * max(1, asked.count(b"*")))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{door.getsockname()[1]}"
        door.shutdown(socket.SHUT_RDWR)
    thread.join(100)


def test_a_server_that_is_loading_is_refused(scratch: Path) -> None:
    with answering(b"-LOADING Redis is loading the dataset in memory\r\n") as url:
        assert "still loading its data" in refusal(run("demo", PENSTOCK_REDIS_URL=url))


def test_a_server_that_is_too_old_is_refused(scratch: Path) -> None:
    from ground.errors import RedisUnfit
    from ground.redis.check import ServerFacts, require_fit
    from ground.redis.url import parse_redis_url

    old = ServerFacts("Redis", (5, 0, 14), "master", "noeviction", 0, "aof", "")
    with pytest.raises(RedisUnfit, match=r"PENSTOCK_REDIS_URL: .* runs Redis 5\.0\.14; .* 6\.2"):
        require_fit(old, parse_redis_url("redis://127.0.0.1"))


@pytest.mark.parametrize("words", ["worker", "run -", "top --once", "monitor", "up", "demo"])
def test_a_cluster_is_refused_for_queues(scratch: Path, words: str) -> None:
    """docs/guide/redis.md has this list."""
    said = refusal(run(*words.split(), PENSTOCK_REDIS_URL="redis+cluster://127.0.0.1:1"))
    assert said.startswith("PENSTOCK_REDIS_URL: RQ's queues need one primary")


def test_a_node_of_a_cluster_is_refused(redis_cluster, scratch: Path) -> None:
    url = f"redis://127.0.0.1:{redis_cluster.target.nodes[0][1]}"
    for words in ("worker --sandbox local", "up", "top --once"):
        said = refusal(run(*words.split(), PENSTOCK_REDIS_URL=url))
        assert said.startswith(f"PENSTOCK_REDIS_URL: {url}/0 is a node of a Redis Cluster.")
        assert "redis+cluster://" in said


def test_a_port_that_is_taken_is_refused(scratch: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refusal(run("demo", PENSTOCK_REDIS_PORT=port))
    assert said.startswith(f"PENSTOCK_REDIS_PORT: port {port} on 127.0.0.1 is taken")


def test_a_data_directory_that_cannot_be_written_is_refused(scratch: Path) -> None:
    (scratch / "file").touch()
    said = refusal(run("demo", PENSTOCK_DATA_DIR=str(scratch / "file" / "data")))
    assert said.startswith("PENSTOCK_DATA_DIR: ")
    assert "; name a folder that you may write to" in said


def test_a_server_binary_that_is_not_there_is_refused(scratch: Path) -> None:
    said = refusal(run("demo", PENSTOCK_REDIS_SERVER=str(scratch / "nothing")))
    assert said.startswith("PENSTOCK_REDIS_SERVER: ")


def test_a_server_binary_that_is_something_else_is_named(scratch: Path) -> None:
    given = {"PENSTOCK_REDIS_SERVER": "/bin/false", "PENSTOCK_DATA_DIR": str(scratch / "data")}
    said = refusal(run("buffer", "serve", **given))
    assert said.endswith("It was /bin/false; PENSTOCK_REDIS_SERVER names another")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"PENSTOCK_SANDBOX": "modal"}, "PENSTOCK_SANDBOX: 'modal' is neither of "),
        ({"PENSTOCK_SANDBOX": "fusion"}, "PENSTOCK_SANDBOX_FUSION_URL: is not set"),
        ({"PENSTOCK_SANDBOX_FUSION_URL": "host:1"}, "PENSTOCK_SANDBOX_FUSION_URL: must look like"),
        ({"PENSTOCK_SANDBOX_EXPOSE": "/no/such"}, "PENSTOCK_SANDBOX_EXPOSE: there is no /no/such"),
        ({"PENSTOCK_SANDBOX_EXPOSE": "/srv,/"}, "PENSTOCK_SANDBOX_EXPOSE: / as a whole cannot be"),
        ({"PENSTOCK_SANDBOX_PYTHON": "/no/such"}, "PENSTOCK_SANDBOX_PYTHON: names no file that"),
    ],
)
def test_a_worker_with_a_sandbox_that_cannot_be_does_not_start(
    scratch: Path, given: dict[str, str], said: str
) -> None:
    local = {} if "EXPOSE" not in str(given) and "PYTHON" not in str(given) else {
        "PENSTOCK_SANDBOX": "local"
    }  # fmt: skip
    result = run("worker", "--burst", PENSTOCK_DATA_DIR=str(scratch / "data"), **given, **local)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith(f"penstock: {said}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("sandbox serve --port 70000", "--port: 127.0.0.1:70000 cannot be listened on: "),
        (
            "worker --sandbox local --metrics-port 70000",
            "--metrics-port: 127.0.0.1:70000 cannot be listened on: ",
        ),
        (
            "worker --sandbox bogus",
            "--sandbox (PENSTOCK_SANDBOX): 'bogus' is neither of fusion, local, ",
        ),
        ("worker --gate-limit 4", "--gate-limit is the limit of a gate: name it with --gate"),
        ("worker --sandbox local --gate nope", "no gate is called 'nope'; there are none yet"),
        ("run --timeout -3 -", "Invalid value for '--timeout': -3.0"),
        ("health nothing", "'nothing' is not a URL, redis or worker"),
        (
            "limits set code",
            "say what to change: --gate-limit, --rate, --burst, --amount, --passing, --min, --max ",
        ),
        (
            "sandbox serve --without-token --host 192.0.2.1",
            "--host: 192.0.2.1:8080 cannot be listened on: ",
        ),
        ("sandbox serve --patience -1", "Invalid value for '--patience': -1"),
        ("sandbox serve --line -1", "Invalid value for '--line': -1"),
        ("sandbox serve --port 0 --preload nope", "can be done: install it for the interpreter"),
        ("sandbox kill", "name the sandboxes to end, or use --all"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(scratch: Path, words: str, said: str) -> None:
    result = run(*words.split(), PENSTOCK_DATA_DIR=str(scratch / "data"))
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("limit", [0, 10**23])
def test_a_limit_that_cannot_be_meant_is_refused_in_words(
    shared_server: PrivateRedis, real_redis: ground.Client, limit: int
) -> None:
    url = {"PENSTOCK_REDIS_URL": shared_server.url}
    said = refusal(run("limits", "set", "code", "--gate-limit", str(limit), **url))
    assert said.startswith("--gate-limit: must be a whole number from 1 to 1000000000")


def test_what_a_service_answers_steers_no_terminal() -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(b"\x1b]0;owned\x07\x1b[2Jwell")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        result = run("health", f"http://127.0.0.1:{server.server_port}")
    assert (result.returncode, "\x1b" in result.stderr) == (1, False)
    assert "well" in result.stderr


def test_a_service_whose_answer_breaks_off_is_not_well_by_its_status() -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"9\r\nno r")

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        result = run("health", url)
    said = f"penstock: {url}: it answers 503, and does not say why\n"
    assert (result.returncode, result.stderr) == (1, said)


def test_the_health_of_a_service_whose_url_has_its_token_is_asked_and_the_token_is_not_shown() -> (
    None
):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        url = f"127.0.0.1:{server.server_port}"
        assert run("health", f"http://any:s3cret@{url}").returncode == 0
    gone = run("health", f"http://any:s3cret@{url}")
    assert (gone.returncode, gone.stderr.partition(": [")[0]) == (1, f"penstock: http://{url}")


def test_a_working_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    said = subprocess.run(
        ["sh", "-c", 'cd gone; rmdir ../gone; exec "$0" status', PENSTOCK],
        env=clean(), cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "PENSTOCK_DATA_DIR: .penstock is in a working folder that was deleted" in refusal(said)


# The demo


def picture_in(folder: Path) -> list[str]:
    return ["--picture", str(folder / "demo.svg")]


def test_the_demo_loses_nothing_though_a_worker_is_killed(scratch: Path) -> None:
    result = run("demo", "--jobs", "16", "--json", "--picture", str(scratch / "demo.html"))
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert (outcome["jobs"], outcome["finished"], outcome["lost"]) == (14, 14, 0)
    assert outcome["killed"] == -signal.SIGKILL
    assert outcome["executions"] >= outcome["jobs"] + outcome["repeated"] > outcome["jobs"]
    assert outcome["permits_left"] == 0
    assert 1 <= outcome["most_at_once"] <= outcome["limit"] == 4
    assert (outcome["groups"], outcome["groups_delivered"], outcome["groups_timed_out"]) == (
        4, 3, 1,
    )  # fmt: skip
    assert "is killed with -9 in job 0-0," in result.stderr, "by luck, in whichever job"
    page = Path(outcome["picture"]).read_text()
    assert page.count("<polyline") == 6
    assert "14/14</th><td>programs run to their end" in page
    assert "src=" not in page
    assert "href=" not in page


@pytest.mark.parametrize("options", [[], ["--picture", "file/demo.svg"]])
def test_a_demo_whose_picture_has_no_place_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    began = time.monotonic()
    said = refusal(run("demo", *options, PENSTOCK_DATA_DIR="file/state"))
    assert said.startswith("--picture: " if options else "PENSTOCK_DATA_DIR: ")
    assert "name a folder that you may write to, or --picture FILE" in said
    assert time.monotonic() - began < 90


def test_a_demo_in_a_folder_of_somebody_elses_draws_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / ".penstock").touch()  # where no folder can be made, by root neither
    monkeypatch.chdir(tmp_path)
    mine = {"TMPDIR": str(tmp_path / "mine")}
    result = run("demo", "--jobs", "12", "--json", **mine)
    assert result.returncode == 0, result.stderr
    picture = Path(json.loads(result.stdout)["picture"])
    assert picture.parent == tmp_path / "mine"
    assert "<polyline" in picture.read_text()


def test_a_demo_with_a_wrong_sandbox_setting_does_not_begin(scratch: Path) -> None:
    said = refusal(run("demo", *picture_in(scratch), PENSTOCK_SANDBOX_PYTHON="/no/such/python"))
    assert said.startswith("PENSTOCK_SANDBOX_PYTHON: names no file that can be executed")


def test_a_demo_without_a_sandbox_says_so(scratch: Path) -> None:
    result = run("demo", *picture_in(scratch), PENSTOCK_SANDBOX_PYTHON="/bin/false")
    assert (result.returncode, result.stdout) == (1, "")
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("penstock: the demo failed: no sandbox could run a program here (")
    assert last.endswith("`penstock doctor` says what to do")


def test_every_execution_is_in_a_ledger_that_the_demo_does_not_keep(
    scratch: Path, private_redis: Callable[..., PrivateRedis]
) -> None:
    """Programs are counted where they run: the killed worker's have begun, and never ended. On a
    Redis that is named nothing else is left."""
    server = private_redis()
    server.ask("SET", "mine", 1)
    result = run(
        "demo", "--jobs", "16", "--json", "--picture", str(scratch / "demo.svg"),
        PENSTOCK_REDIS_URL=server.url, LEDGER_URL=server.url, PYTHONPATH=str(Path.cwd()),
        PENSTOCK_SANDBOX="tests.penstock.ledger.counting_sandbox",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    import redis

    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        begun, ended = client.lrange("ledger:begun", 0, -1), client.lrange("ledger:ended", 0, -1)
        left = client.keys()
        # RQ 3 leaves a lock of its own for a while.
        kept = {key for key in left if client.ttl(key) == -1}
    died = {entry.split()[0] for entry in begun if entry not in ended}
    assert len(died) <= 1, "more than one process died"
    ran = [entry.split()[1] for entry in begun]
    assert set(ran) == {entry.split()[1] for entry in ended}
    assert len(set(ran)) == outcome["jobs"] == outcome["finished"]
    assert outcome["jobs"] <= len(ended) <= len(ran) <= outcome["executions"]
    assert outcome["executions"] > outcome["jobs"], "nobody died in the middle of a job"
    assert [key for key in left if "penstock" in key] == []
    assert kept == {"mine", "ledger:begun", "ledger:ended"}


def test_the_demo_runs_on_the_primary_behind_a_sentinel(scratch: Path, sentinel_pair) -> None:
    named = {"PENSTOCK_REDIS_URL": sentinel_pair.url, "PATH": "/usr/bin:/bin"}
    result = run("demo", "--jobs", "12", *picture_in(scratch), **named)
    assert result.returncode == 0, result.stderr
    assert (Path(sys.prefix, "bin", "activate")).is_file() is ("/activate " in result.stderr)
    assert "10/10  programs run to their end" in result.stdout
    assert "penstock up" in result.stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_demo_that_is_ended_on_the_way_leaves_no_process(
    scratch: Path, number: signal.Signals, code: int
) -> None:
    demo = start("demo", "--jobs", "500")
    assert demo.stderr is not None
    assert "is up" in demo.stderr.readline()
    until(lambda: len(crew_of(scratch)) == 3, "no workers")
    (folder,) = scratch.glob("penstock-demo-*")
    for worker in crew_of(scratch):  # one that is killed removes nothing
        assert f"TMPDIR={folder}/" in (worker / "environ").read_text()
    demo.send_signal(number)
    _, said = demo.communicate(timeout=100)
    assert demo.returncode == code
    assert "Traceback" not in said
    assert "does not answer" not in said
    until(lambda: processes_of(scratch) == [], "a process outlived the demo")
    if number == signal.SIGKILL:  # nobody was left to remove the folder
        for folder in scratch.glob("penstock-*"):
            folder.rename(scratch / f"left-{folder.name}")


def test_an_option_that_is_refused_has_the_name_that_was_typed() -> None:
    for words, named in (
        ("worker --sandbox local --concurrency -1", "--concurrency (PENSTOCK_CONCURRENCY): must"),
        ("worker --sandbox local --concurrency=-1", "--concurrency (PENSTOCK_CONCURRENCY): must"),
        ("monitor --port 99999", "--port (PENSTOCK_MONITOR_PORT): must"),
        ("sandbox serve --concurrency 0", "--concurrency (PENSTOCK_SANDBOX_CONCURRENCY): must"),
        ("--run a/b worker", "--run (PENSTOCK_RUN): a run is named without /"),
    ):
        assert refusal(run(*words.split())).startswith(named)
    said = refusal(run("worker", *HERE, "code", PENSTOCK_CONCURRENCY="-1"))
    assert said.startswith("PENSTOCK_CONCURRENCY: must be ")


def test_a_gates_number_that_is_refused_has_the_name_that_was_typed(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    url = {"PENSTOCK_REDIS_URL": shared_server.url}
    for words, named in (
        (["--gate-limit", "0"], "--gate-limit: must be a whole number from 1"),
        (["--limit=0"], "--limit: must be a whole number from 1"),
        (["--rate", "-1"], "--rate: must be above 0"),
    ):
        assert refusal(run("limits", "set", "refused", *words, **url)).startswith(named)
