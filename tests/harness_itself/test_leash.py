"""Nothing outlives the test run, and no missing server goes unnoticed."""

import os
import signal
import threading
from pathlib import Path

import pytest

import tests.conftest
from tests.harness import doomed, leash
from tests.harness.killing import Child
from tests.harness.remains import processes_in, until_nothing_runs_in
from tests.harness.servers import PrivateRedis, server_binary, until


def is_a_test_run(folder):
    server = PrivateRedis(folder).start()
    doomed.reached("serving", pid=server.pid)
    threading.Event().wait()


def is_a_test_run_in_threads(folder):
    starter = threading.Thread(target=PrivateRedis(folder).start)
    starter.start()
    starter.join()
    doomed.reached("serving", left=len(processes_in(Path(folder))))
    threading.Event().wait()


def test_a_server_is_gone_when_the_test_run_is_killed(tmp_path):
    with Child(is_a_test_run, str(tmp_path)) as run:
        run.wait_for("serving")
        assert processes_in(tmp_path)
        run.kill()
        until_nothing_runs_in(tmp_path)


def test_a_server_started_in_a_thread_outlives_the_thread_but_not_the_run(tmp_path):
    with Child(is_a_test_run_in_threads, str(tmp_path)) as run:
        assert run.wait_for("serving")["left"] == 1
        run.kill()
        until_nothing_runs_in(tmp_path)


def test_a_leashed_command_is_the_process_itself():
    process = leash.start(["sleep", "1000"])
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(100) == -signal.SIGTERM


def test_a_test_run_in_the_background_obeys_ctrl_c_as_does_what_it_starts():
    kept = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does
    try:
        tests.conftest.pytest_runtest_setup()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        process = leash.start(["sleep", "1000"])
    finally:
        signal.signal(signal.SIGINT, kept)
    until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n", "the command")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(100) == -signal.SIGINT


def test_a_missing_server_fails_in_ci(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TEST_SERVER", "/no/such/server")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"CI must have one: .*/no/such/server"):
        server_binary()


def test_a_missing_server_skips_on_a_persons_machine_and_says_why(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TEST_SERVER", "/no/such/server")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"no real server: .*/no/such/server"):
        server_binary()
