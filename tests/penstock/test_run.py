"""`penstock run`: as if the program had run here."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ground
from buffer import Policy, RolloutBuffer, TaskConfig
from buffer.group_functions import GroupFunctions
from jail.judge import JudgeResult
from limiter import TokenBucket
from penstock.programs import exit_code
from penstock.verdict_table import print_verdicts, verdicts_exit_code
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, until
from tests.penstock.commands import clean, run
from tests.worker.concurrent.crew import at_work
from worker import CodeResult


@contextmanager
def attended(client: ground.Client) -> Iterator[None]:
    with at_work(client, sandbox="local"):
        yield


def fed(url: str, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, "run", *options, "-"], input=program, capture_output=True, text=True,
        env=os.environ | {"PENSTOCK_REDIS_URL": url}, timeout=100, check=False,
    )  # fmt: skip


def test_output_and_exit_code_are_the_programs(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("PENSTOCK_SANDBOX", "local")
    from worker.settings import worker_settings

    worker_settings.cache_clear()
    url = shared_server.url
    with attended(real_redis):
        good = fed(url, "import sys; print(6 * 7); print('mind', file=sys.stderr)")
        assert (good.returncode, good.stdout, good.stderr) == (0, "42\n", "mind\n")
        assert fed(url, "raise SystemExit(3)").returncode == 3
        assert fed(url, "import os; os.kill(os.getpid(), 9)").returncode == 137
        late = fed(url, "print(1, flush=True)\nwhile True: pass", "--timeout", "3")
        assert (late.returncode, late.stdout) == (124, "1\n")
        assert "run_timeout" in late.stderr
        whole = json.loads(fed(url, "print(1)", "--json").stdout)
        assert whole["run_result"]["stdout"] == "1\n"
        script = tmp_path / "hello.sh"
        script.write_text("read name; echo hello $name\n")
        told = subprocess.run(
            [PENSTOCK, "run", "-i", script], input="you\n", capture_output=True, text=True,
            env=os.environ | {"PENSTOCK_REDIS_URL": url}, timeout=100, check=False,
        )  # fmt: skip
        assert told.stdout == "hello you\n"
        with subprocess.Popen(
            [PENSTOCK, "run", script], env=os.environ | {"PENSTOCK_REDIS_URL": url}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as unasked:  # fmt: skip
            assert unasked.wait(100) == 0, "it waits for the end of an open pipe"
            assert unasked.stdout is not None
            assert unasked.stdout.read() == "hello\n"
    worker_settings.cache_clear()


@pytest.mark.skipif(sys.platform != "linux", reason="the embedded sandbox is Linux's")
def test_a_program_runs_in_the_embedded_sandbox_without_worker_and_redis(tmp_path: Path) -> None:
    script = tmp_path / "hello.sh"
    script.write_text("read name; echo hello $name; exit 3\n")
    told = subprocess.run(
        [PENSTOCK, "sandbox", "run", "-i", script], input="you\n", capture_output=True, text=True,
        env=clean(), timeout=100, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (3, "hello you\n"), told
    endless = tmp_path / "endless.py"
    endless.write_text("while True: pass")
    late = run("sandbox", "run", "--timeout", "0.2", str(endless))
    assert (late.returncode, late.stdout) == (124, "")
    assert "run_timeout" in late.stderr
    unfit = run("sandbox", "run", "--python", "/bin/false", str(endless))
    assert unfit.returncode == 125
    assert "/bin/false cannot be run" in unfit.stderr


SQUARE = '#include <cstdio>\nint main() { int n; scanf("%d", &n); printf("%d\\n", n * n); }\n'


def test_a_program_is_judged_against_a_file_of_cases(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> None:
    program, cases = tmp_path / "square.cpp", tmp_path / "cases.json"
    program.write_text(SQUARE)

    def judged(outputs: list[str], *options: str) -> subprocess.CompletedProcess[str]:
        cases.write_text(json.dumps({"inputs": ["2", "3", "4"], "outputs": outputs}))
        return subprocess.run(
            [PENSTOCK, "run", "--cases", cases, *options, program], text=True, timeout=100,
            env=os.environ | {"PENSTOCK_REDIS_URL": shared_server.url}, capture_output=True,
            check=False,
        )  # fmt: skip

    with attended(real_redis):
        right = judged(["4", "9", "16"])
        wrong = judged(["4", "8", "16"])
        whole = json.loads(judged(["4", "8", "16"], "--json").stdout)

    assert (right.returncode, right.stderr) == (0, "")
    assert right.stdout.rstrip().endswith("3 of 3 cases passed")
    assert wrong.returncode == 1
    assert "wrong    printed '9\\n'" in wrong.stdout
    assert whole["verdicts"] == "PWP"
    unreadable = judged(["4"])
    assert unreadable.returncode == 2
    assert "3 inputs, 1 outputs" in unreadable.stderr


def test_a_missing_verdict_is_told_from_a_failed_case() -> None:
    cut_off = JudgeResult(verdicts="PS", reasons={1: "total_seconds"})

    assert verdicts_exit_code(cut_off, 125) == 125
    assert verdicts_exit_code(JudgeResult(verdicts="PM"), 125) == 125
    assert verdicts_exit_code(JudgeResult(verdicts="PWS"), 125) == 1


def test_what_a_case_says_twice_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    result = JudgeResult(
        verdicts="M", reasons={0: "language"}, comments={0: "no verilog"},
        evidence={0: "no verilog"},
    )  # fmt: skip
    print_verdicts(result)
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split(maxsplit=2)[1:] == ["masked", "language, no verilog"]


def test_what_the_terminal_cannot_write_is_written_as_a_number(
    shared_server: PrivateRedis, real_redis: ground.Client, tmp_path: Path
) -> None:
    script = tmp_path / "hello.py"
    script.write_text("print('caf\\u00e9 \\u2192')")
    with attended(real_redis):
        env = {"PENSTOCK_REDIS_URL": shared_server.url, "PYTHONIOENCODING": "latin-1"}
        shown = subprocess.run(
            [PENSTOCK, "run", str(script)], capture_output=True, env=os.environ | env, timeout=100,
            check=False,
        )  # fmt: skip
    assert (shown.returncode, shown.stdout) == (0, b"caf\xe9 \\u2192\n"), shown.stderr


@pytest.mark.parametrize("words", [("-i", "-"), ("--cases", "-", "-")])
def test_one_stdin_cannot_be_the_program_and_its_input(words: tuple[str, ...]) -> None:
    result = run("run", *words)
    assert (result.returncode, result.stdout) == (2, "")
    assert "stdin is already the program" in result.stderr


def test_where_nobody_listens_it_says_so_and_leaves_nothing_queued(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    alone = fed(shared_server.url, "print(1)")
    assert (alone.returncode, alone.stdout) == (125, "")
    assert "no worker listens on queue 'code'; start everything with penstock up" in alone.stderr
    assert "or a worker: penstock worker --sandbox local code" in alone.stderr
    TokenBucket(real_redis, "code", limit=4).sync.status()
    assert "penstock worker --sandbox local --gate code code" in fed(shared_server.url, "1").stderr
    assert real_redis.keys("rq:job:*") == []


def test_a_program_that_waits_at_a_paused_gate_says_so_once(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    gate = TokenBucket(real_redis, "rests", limit=4)
    gate.sync.pause()
    with at_work(real_redis, sandbox="local", gate="rests", gate_limit=4, job_lease=60.0):
        until(lambda: real_redis.exists(*real_redis.smembers("rq:workers")), "the worker")
        waiting = subprocess.Popen(
            [PENSTOCK, "run", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
            env=os.environ | {"PENSTOCK_REDIS_URL": shared_server.url},
        )  # fmt: skip
        with waiting, contextlib.ExitStack() as ends:
            ends.callback(waiting.kill)  # also one that a failing test leaves
            assert waiting.stdin is not None
            waiting.stdin.write("print(1)")
            waiting.stdin.close()
            assert waiting.stderr is not None
            said = waiting.stderr.readline()
            gate.sync.resume()
            assert waiting.wait(100) == 0
            assert waiting.stderr.read() == ""
    assert said == (
        "penstock: the program waits: queue 'code' is held back: gate 'rests' is paused\n"
    )


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"status": "Success", "run_result": {"status": "Finished", "return_code": 0}}, 0),
        ({"status": "Failed", "run_result": {"status": "Finished", "return_code": 7}}, 7),
        ({"status": "Failed", "run_result": {"status": "Finished", "return_code": -11}}, 139),
        ({"status": "Failed", "run_result": {"status": "TimeLimitExceeded"}}, 124),
        ({"status": "Failed", "error_kind": "limit", "error_reason": "memory_limit",
          "run_result": {"status": "Finished", "return_code": -9}}, 137),
        ({"status": "SandboxError"}, 125),
    ],
)  # fmt: skip
def test_every_end_has_its_exit_code(fields: dict[str, object], code: int) -> None:
    assert exit_code(CodeResult.model_validate(fields)) == code


def test_groups_are_listed_shown_and_put_back(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync
    buffer.write_many([
        {"instance_id": "a", "uid": str(n), "messages": [], "reward": 0.5} for n in (0, 1)
    ])  # fmt: skip
    env = {"PENSTOCK_REDIS_URL": shared_server.url}
    (group,) = json.loads(run("groups", "ls", "--json", **env).stdout)
    assert (group["instance_id"], group["state"], group["items"]) == ("a", "ready", 2)
    assert "ready" in run("groups", "ls", **env).stdout
    for words in (("a",), ("a:0",), ("a", "--round", "0")):
        assert len(json.loads(run("groups", "show", *words, **env).stdout)) == 2
    assert run("groups", "show", "b", **env).returncode == 1
    assert buffer.take() is None  # equal rewards teach nothing: the group is discarded
    back = run("groups", "requeue", "a", "b", **env)
    assert (back.returncode, back.stdout) == (1, "a is ready again\n")
    assert "b: in round 0 it is neither in quarantine nor kept" in back.stderr
    noted = [change[b"outcome"] for _, change in real_redis.xrange("penstock:audit")]
    assert noted == [b"done", b"in round 0 it is neither in quarantine nor kept"]
    buffer.close()


def test_the_age_of_a_group_is_by_the_clock_of_redis(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=2)).sync
    buffer.write({"instance_id": "a", "uid": "0", "messages": [], "reward": 0.5})
    buffer.close()
    ahead = "import time; now = time.time; time.time = lambda: now() + 86400; "
    penstock = "import sys; from penstock.entry import main; main()"
    listed = subprocess.run(
        [sys.executable, "-c", ahead + penstock, "groups", "ls"], capture_output=True, text=True,
        env=clean() | {"PENSTOCK_REDIS_URL": shared_server.url}, check=True,
    )  # fmt: skip
    (row,) = listed.stdout.splitlines()[1:]
    assert float(row.split()[-2]) < 3600


def test_the_versions_of_tasks_with_a_policy_are_shown(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    env = {"PENSTOCK_REDIS_URL": shared_server.url}
    buffer = RolloutBuffer(real_redis, "math", TaskConfig(group_size=1)).sync
    buffer.config()
    assert "no task in this run has a policy" in run("groups", "versions", **env).stderr
    buffer.set_policy(Policy(groups_per_version=2, max_age=1))
    buffer.publish(7)
    with buffer.slot("slow"):
        (found,) = json.loads(run("groups", "versions", "--json", **env).stdout)
        assert (found["version"], found["outstanding"], found["slots"]) == (7, {"0": 1}, 1)
        buffer.publish(9)
    (found,) = json.loads(run("groups", "versions", "--json", **env).stdout)
    assert (found["dropped"], found["dropped_by"]) == ({"slow": 1}, {"wait": 1})
    assert "100.0%" in run("groups", "versions", **env).stdout
    buffer.close()


def test_a_group_in_quarantine_is_listed_once_with_its_reason(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such key: score")

    buffer = RolloutBuffer(
        real_redis, "math", TaskConfig(group_size=1),
        functions=GroupFunctions(normalize_group_data=broken, is_valid_group=lambda *_: True),
    ).sync  # fmt: skip
    buffer.write({"instance_id": "a", "uid": "0", "messages": [], "reward": 0.5})
    assert buffer.take() is None
    buffer.close()
    env = {"PENSTOCK_REDIS_URL": shared_server.url}
    (group,) = json.loads(run("groups", "ls", "--json", **env).stdout)
    assert group["state"] == "quarantined"
    assert group["reason"] == "normalize_group_data of math: ValueError: no such key: score"


def test_top_is_data_where_no_terminal_reads(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    env = {"PENSTOCK_REDIS_URL": shared_server.url}
    calm = run("top", **env, FORCE_COLOR="1")  # which makes no terminal of a pipe
    assert (calm.returncode, "\x1b" in calm.stdout) == (3, False), "nothing has used this Redis"
    real_redis.sadd("rq:queues", "rq:queue:code")
    real_redis.lpush("rq:queue:code", "x")
    assert json.loads(run("top", "--json", **env).stdout)["queues"][0]["depth"] == 1
    bad = run("top", "--once", **env)
    assert bad.returncode == 1
    assert "! no worker listens on queue 'code'" in bad.stdout
    said = " ".join(bad.stdout.split())
    assert "PENSTOCK_SANDBOX_FUSION_URL=http://… penstock worker code" in said, "no command is cut"
