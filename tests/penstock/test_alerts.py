"""deploy/alerts.yml over time, by Prometheus' own promtool: each alert fires after its `for`,
says what it should, and is silent for a fleet that is well. amtool reads deploy/alertmanager.yml.

`make conformance-alerts` brings both tools.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.architecture.source import ROOT
from tests.penstock import promql

STEP = 15  # seconds between two scrapes, as in deploy/prometheus.yml
RULES = {rule["alert"]: rule for rule in promql.alerts()}


@dataclass(frozen=True)
class Broken:
    """What Prometheus scrapes, once every 15 s from the start; and what the alert then says."""

    alert: str
    series: dict[str, str]
    labels: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    seen: int = 2 * STEP  # how long its expression takes to be true


UP = 'up{job="penstock-monitor", instance="monitor:8890"}'
PROBLEM = {"verdict": "masked", "kind": "queue", "name": "code", "instance": "monitor:8890"}
VERDICT = "The verdict on the fleet is masked: queue code"


def problem(level: str) -> dict[str, str]:
    labels = ", ".join(f'{name}="{value}"' for name, value in (PROBLEM | {"level": level}).items())
    return {f"penstock_problem{{{labels}}}": "1x300"}


BROKEN = [
    Broken("PenstockMonitorDown", {UP: "0x300"},
           {"job": "penstock-monitor", "instance": "monitor:8890"}),
    Broken("PenstockMonitorDown", {'up{job="penstock-sandbox"}': "1x300"},
           {"job": "penstock-monitor"}),
    Broken("PenstockProcessDown",
           {UP: "1x300", 'up{job="penstock-worker", instance="10.0.0.7:9200"}': "0x300"},
           {"job": "penstock-worker", "instance": "10.0.0.7:9200"},
           "10.0.0.7:9200 of penstock-worker does not answer."),
    Broken("PenstockBroken", problem("bad"), PROBLEM | {"level": "bad"}, VERDICT),
    Broken("PenstockLooksWrong", problem("warn"), PROBLEM | {"level": "warn"}, VERDICT),
    Broken("PenstockUnused", {"penstock_unused": "1x300"}),
    Broken("PenstockJobsWaitLong", {'penstock_queue_oldest_seconds{queue="code"}': "630+15x300"},
           {"queue": "code"}, "The first job of queue code has waited 16m 0s."),
    Broken("PenstockJobsFail", {
        'penstock_queue_jobs_total{queue="code", outcome="finished"}': "0+90x300",
        'penstock_queue_jobs_total{queue="code", outcome="failed"}': "0+10x300",
    }, {"queue": "code"}, "10% of the jobs of queue code fail."),
    Broken("PenstockProgramsMasked", {
        'penstock_queue_programs_total{queue="code", outcome="finished"}': "0+98x300",
        'penstock_queue_programs_total{queue="code", outcome="masked"}': "0+2x300",
    }, {"queue": "code"}, "2% of the programs of queue code have no outcome."),
    Broken("PenstockProgramsTimeOut", {
        'penstock_queue_programs_total{queue="code", outcome="finished"}': "0+4x300",
        'penstock_queue_programs_total{queue="code", outcome="timeout"}': "0+6x300",
    }, {"queue": "code"}),
    Broken("PenstockBreakerOpen", {'penstock_queue_breaker_open{queue="code"}': "1x300"},
           {"queue": "code"}),
    Broken("PenstockGateBreakerOpen", {'penstock_gate_breaker_open{gate="code"}': "1x300"},
           {"gate": "code"}),
    Broken("PenstockPermitsExpire", {'penstock_gate_expired_total{gate="code"}': "0+2x300"},
           {"gate": "code"}, "52 leases of gate code ended without a renewal.", seen=6 * STEP),
    Broken("PenstockGroupsTimeOut", {
        'penstock_buffer_groups_total{run="default", task="math", outcome="finished"}': "0+8x300",
        'penstock_buffer_groups_total{run="default", task="math", outcome="expired"}': "0+2x300",
    }, {"run": "default", "task": "math"}, "20% of the groups of task math time out."),
    Broken("PenstockRedisFull", {
        "penstock_redis_used_memory_bytes": "95x300", "penstock_redis_max_memory_bytes": "100x300",
    }, summary="Redis uses 95% of its memory."),
]  # fmt: skip
WELL = {
    UP: "1x300", 'up{job="penstock-worker", instance="10.0.0.7:9200"}': "1x300",
    "penstock_unused": "0x300", 'penstock_queue_oldest_seconds{queue="code"}': "3x300",
    'penstock_queue_jobs_total{queue="code", outcome="finished"}': "0+90x300",
    'penstock_queue_jobs_total{queue="code", outcome="failed"}': "0+1x300",
    'penstock_queue_programs_total{queue="code", outcome="finished"}': "0+90x300",
    'penstock_queue_programs_total{queue="code", outcome="masked"}': "0x300",
    'penstock_queue_programs_total{queue="code", outcome="timeout"}': "0+9x300",
    'penstock_queue_breaker_open{queue="code"}': "0x300",
    'penstock_gate_breaker_open{gate="code"}': "0x300",
    'penstock_gate_expired_total{gate="code"}': "0x300",
    'penstock_buffer_groups_total{run="default", task="math", outcome="finished"}': "0+8x300",
    "penstock_redis_used_memory_bytes": "50x300", "penstock_redis_max_memory_bytes": "0x300",
}  # fmt: skip


def test_every_rule_has_a_case_that_fires_it() -> None:
    assert {one.alert for one in BROKEN} == RULES.keys()


def test_the_guide_lists_every_rule_and_every_job() -> None:
    page = (ROOT / "docs" / "guide" / "watch.md").read_text()
    table = page[page.index("\n| Alerts | When |") : page.index("\nNames of gates")]
    assert set(re.findall(r"`(Penstock\w+)`", table)) == RULES.keys()
    assert f"`deploy/alerts.yml` has {len(RULES)} rules" in page
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert [job["job_name"] for job in scraped if f"`{job['job_name']}`" not in page] == []


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: make conformance-alerts")
@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.alert)
def test_an_alert_fires_when_its_time_is_over_and_not_before(
    broken: Broken, tmp_path: Path
) -> None:
    rule = RULES[broken.alert]
    waits = int(rule["for"].removesuffix("m")) * 60
    said = dict(rule["annotations"])
    said["summary"] = broken.summary or said["summary"].replace(
        "{{ $labels.queue }}", broken.labels.get("queue", "")
    ).replace("{{ $labels.gate }}", broken.labels.get("gate", ""))
    fires = {"exp_labels": rule["labels"] | broken.labels, "exp_annotations": said}
    tested = checked(broken.series, tmp_path, [
        asked(waits - STEP, broken.alert), asked(waits + broken.seen, broken.alert, fires),
    ])  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool: make conformance-alerts")
def test_no_alert_fires_for_a_fleet_that_is_well_and_one_that_does_is_seen(tmp_path: Path) -> None:
    tested = checked(WELL, tmp_path, [asked(3600, alert) for alert in RULES])
    assert tested.returncode == 0, tested.stdout + tested.stderr
    tested = checked(WELL | {UP: "0x300"}, tmp_path, [asked(3600, "PenstockMonitorDown")])
    assert tested.returncode != 0


@pytest.mark.skipif(not shutil.which("amtool"), reason="no amtool: make conformance-alerts")
def test_alertmanager_takes_its_file_and_pages_for_what_should_wake_somebody() -> None:
    file = f"--config.file={ROOT / 'deploy/alertmanager.yml'}"
    checked = subprocess.run(
        ["amtool", "check-config", ROOT / "deploy/alertmanager.yml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stderr
    for severity, receiver in (("page", "at-once"), ("look", "by-day")):
        routed = subprocess.run(
            ["amtool", "config", "routes", "test", file, f"severity={severity}"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert routed.stdout.split() == [receiver]


def asked(seconds: int, alert: str, *fires: dict[str, Any]) -> dict[str, Any]:
    return {"eval_time": f"{seconds}s", "alertname": alert, "exp_alerts": list(fires)}


def checked(
    series: dict[str, str], folder: Path, questions: list[dict[str, Any]]
) -> "subprocess.CompletedProcess[str]":
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": f"{STEP}s", "input_series": given, "alert_rule_test": questions}
    file = folder / "alerts_test.yml"
    rules = str(ROOT / "deploy/alerts.yml")
    file.write_text(
        yaml.safe_dump({"rule_files": [rules], "evaluation_interval": f"{STEP}s", "tests": [test]})
    )
    return subprocess.run(
        ["promtool", "test", "rules", file], capture_output=True, text=True, check=False
    )
