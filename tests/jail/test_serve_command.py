"""`penstock sandbox`: what it says as it starts, whom it answers, how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker import CodeRequest, WorkerSettings
from worker.run.choice import make_sandbox

from .serving import CLIENT, START, post, served


def test_it_ends_in_order_when_told() -> None:
    with subprocess.Popen(START, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert CLIENT.get(f"{address}/v1/ping").status_code == 200
        server.terminate()
        server.wait(100)


def test_the_self_test_shows_each_probe_and_what_it_met() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "penstock", "sandbox", "selftest", "--json"],
        capture_output=True,
        check=True,
    )
    facts = json.loads(ran.stdout)
    assert facts["isolation"] == "ns"
    assert all(probe["refused"] for probe in facts["probes"])


def test_the_level_none_is_loud_and_in_every_answer() -> None:
    with subprocess.Popen(
        [*START, "--level", "none", "--python", "/usr/bin/python3"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().strip()
        if url:
            answer = post(url, code="print(1)")
            assert (answer["status"], answer["isolation"]) == ("Success", "none")
            assert CLIENT.get(f"{url}/healthz").json()["isolation"] == "none"
        server.terminate()
        said = server.stderr.read()
    if not url:
        pytest.skip(f"no interpreter for an ordinary user here: {said}")
    assert "UNCONFINED" in said


def test_a_setting_without_sense_is_refused_by_name() -> None:
    ran = subprocess.run(
        [*START, "--expose", "relative/path"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "PENSTOCK_SANDBOX_EXPOSE" in ran.stderr


def test_a_token_is_asked_of_everybody_when_one_is_set(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("secret\n")
    for url in served(memory="256", PENSTOCK_SANDBOX_TOKEN_FILE=str(secret)):
        body = {"language": "python", "code": "print(1)"}
        for given in ({}, {"Authorization": "Bearer wrong"}):
            assert CLIENT.post(f"{url}/run_code", json=body, headers=given).status_code == 401
            assert CLIENT.get(f"{url}/metrics", headers=given).status_code == 401
        assert CLIENT.get(f"{url}/healthz").json()["status"] == "healthy"
        known = {"Authorization": "Bearer secret"}
        assert (
            CLIENT.post(f"{url}/run_code", json=body, headers=known).json()["status"] == "Success"
        )
        figures = CLIENT.get(f"{url}/metrics", headers=known).text
        assert 'penstock_sandbox_programs_total{outcome="finished"} 1.0' in figures
        assert "process_open_fds" in figures


async def test_a_worker_shows_the_sandboxs_token() -> None:
    for url in served(memory="256", PENSTOCK_SANDBOX_TOKEN="secret"):
        settings = WorkerSettings.load(sandbox_fusion_url=url, sandbox_token="secret")
        sandbox = make_sandbox(settings)
        assert (await sandbox.run(CodeRequest(code="print(1)"))).stdout == "1\n"
        await sandbox.close()
