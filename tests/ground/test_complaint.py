"""A trouble that lasts is logged once, and so is its end."""

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import ground
from ground.complaint import Complaint
from ground.redis.connect import target_of
from tests.harness.servers import PrivateRedis, until
from tests.worker.concurrent.crew import at_work
from worker.concurrent.heartbeat import Heartbeat

NAME = "penstock.test"


@pytest.fixture
def complaint(caplog: Any) -> Complaint:
    caplog.set_level("INFO")
    return Complaint(logging.getLogger(NAME), "heartbeat")


def said(caplog: Any) -> list[tuple[str, str]]:
    return [(each.levelname, each.getMessage()) for each in caplog.records if each.name == NAME]


def test_each_reason_is_said_once_and_so_is_the_end(
    complaint: Complaint, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint.over()
    assert said(caplog) == []
    monkeypatch.setattr(time, "monotonic", iter((7.0, 38.0)).__next__)
    for why in ("refused", "too late", "refused", OSError("too late")):
        complaint.of(why)
    complaint.over()
    complaint.over()
    assert said(caplog) == [
        ("WARNING", "heartbeat: refused"),
        ("WARNING", "heartbeat: too late"),
        ("INFO", "heartbeat: it works again, after 31 s"),
    ]


def test_what_fails_again_is_said_again(complaint: Complaint, caplog: Any) -> None:
    for _ in range(2):
        complaint.of("refused")
        complaint.over()
    assert [level for level, _ in said(caplog)] == ["WARNING", "INFO"] * 2


def test_a_worker_says_once_that_its_heartbeat_is_refused_and_when_it_is_not(
    real_redis: ground.Client, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "penstock.worker")
    beats: list[float] = []
    beat = Heartbeat._beat
    monkeypatch.setattr(
        Heartbeat, "_beat", lambda self, began: (beat(self, began), beats.append(began))
    )
    with at_work(real_redis, job_lease=3.0):
        real_redis.delete("rq:workers:code")
        real_redis.set("rq:workers:code", "no set of workers")
        before = len(beats)
        until(lambda: len(beats) >= before + 4, "three beats after that")
        refused = [each for each in caplog.records if "WRONGTYPE" in each.getMessage()]
        assert [each.getMessage().split(" answered: ")[0] for each in refused] == [
            f"heartbeat: {target_of(real_redis)}"
        ]
        real_redis.delete("rq:workers:code")
        until(lambda: "heartbeat: it works again, after" in caplog.text, "the end")


def test_a_worker_says_once_why_redis_does_not_answer_and_when_it_does(
    private_redis: Callable[..., PrivateRedis], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "penstock.worker")
    tries: list[str] = []
    of = Complaint.of
    monkeypatch.setattr(Complaint, "of", lambda self, why: (tries.append(why), of(self, why)))

    def lines(words: str) -> list[str]:
        return [said for each in caplog.records if words in (said := each.getMessage())]

    server = private_redis()
    client = ground.connect(server.target)
    with contextlib.closing(client), at_work(client, job_lease=3.0):
        server.kill()
        until(lambda: len(tries) >= 12, "a dozen tries")
        said = lines("does not answer")
        assert len(said) == len(set(said)) < 12
        server.start()
        for what in ("heartbeat", "claiming"):
            until(partial(lines, f"{what}: it works again, after"), f"{what} to say so")
