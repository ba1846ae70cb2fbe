"""Log lines are structured, on stderr, and carry the id of the call they serve."""

import asyncio
import io
import json
import logging
import sys
import threading

import pytest

import ground
from ground.logs import configure_logging, correlated

LOGGER = logging.getLogger("penstock.test")


@pytest.fixture(autouse=True)
def loggers_as_they_were():
    """The root's, and Penstock's."""
    loggers = [logging.getLogger(), logging.getLogger("penstock")]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture
def configured(monkeypatch):
    """Configures logging, and gives what is written to stderr from then on."""

    def configure(*arguments):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        configure_logging(*arguments)
        return stream

    return configure


@pytest.fixture
def lines(configured):
    """Logs as JSON; gives what was logged, line by line."""
    stderr = configured("json")
    return lambda: [json.loads(line) for line in stderr.getvalue().splitlines()]


NASTY = "\x1b]0;owned\x07\x9b2J\r\x7f\u202e"


def test_what_others_named_steers_no_terminal(configured, lines):
    text = configured("text")
    LOGGER.warning("queue %s\tis\nfull", NASTY, extra={"job": NASTY})
    assert not set(NASTY) & set(text.getvalue()) - set("]0;owned2J")
    assert "queue \\u001b]0;owned\\u0007" in text.getvalue()
    assert "\tis\nfull" in text.getvalue()
    as_json = configured("json")
    LOGGER.warning("queue %s", NASTY)
    assert not set(NASTY) & set(as_json.getvalue()) - set("]0;owned2J")
    assert json.loads(as_json.getvalue())["message"] == f"queue {NASTY}", "nothing is lost"


@pytest.mark.parametrize("form", ["text", "json"])
def test_colours_of_a_terminal_are_left_out(configured, form):
    written = configured(form)
    logging.getLogger("rq.worker").warning("Listening on \x1b[32mcode\x1b[39;49;00m...")
    assert "Listening on code..." in written.getvalue()


def test_a_line_per_request_is_for_those_who_debug(configured):
    said = configured("text", "INFO")
    logging.getLogger("httpx").info("HTTP Request: POST …")
    assert said.getvalue() == ""
    said = configured("text", "DEBUG")
    logging.getLogger("httpx").info("HTTP Request: POST …")
    assert "HTTP Request" in said.getvalue()


def test_a_json_line_says_when_who_and_what(lines):
    LOGGER.warning("%d jobs left", 3, extra={"queue": "code", "ids": ["a", "b"]})
    [line] = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "penstock.test",
        "message": "3 jobs left",
        "queue": "code",
        "ids": ["a", "b"],
    }


def test_a_message_of_many_lines_stays_one_json_line(lines):
    LOGGER.info("first\nsecond é")
    assert [line["message"] for line in lines()] == ["first\nsecond é"]


def test_an_exception_is_part_of_its_line(lines):
    try:
        raise ValueError("broken")
    except ValueError:
        LOGGER.exception("it failed")
    [line] = lines()
    assert line["exception"].endswith("ValueError: broken")


def test_an_extra_cannot_hide_what_the_line_says_itself(lines):
    LOGGER.info("true", extra={"level": "false", "time": "never"})
    [line] = lines()
    assert line["level"] == "info"
    assert line["time"] != "never"


def test_what_json_cannot_say_is_written_as_text(lines):
    LOGGER.info("at", extra={"where": set})
    assert lines()[0]["where"] == "<class 'set'>"


def test_lines_below_the_level_are_not_written(configured):
    stderr = configured("text", "WARNING")
    LOGGER.info("quiet")
    LOGGER.warning("loud")
    assert "loud" in stderr.getvalue()
    assert "quiet" not in stderr.getvalue()


def test_a_text_line_has_the_same_facts(configured):
    stderr = configured("text")
    with correlated("call-7"):
        LOGGER.warning("late", extra={"queue": "code"})
    shown = stderr.getvalue()
    assert shown.strip().endswith("WARNING penstock.test late queue=code [call-7]")


def test_configuring_twice_writes_each_line_once(configured):
    first, second = configured("json"), configured("json")
    LOGGER.info("once")
    assert (first.getvalue(), len(second.getvalue().splitlines())) == ("", 1)


def test_lines_carry_the_id_of_the_innermost_call(lines):
    with correlated("outer"):
        with correlated("inner") as inner:
            assert ground.correlation_id() == inner == "inner"
            LOGGER.info("in")
        LOGGER.info("out")
    LOGGER.info("after")
    assert [line.get("correlation") for line in lines()] == ["inner", "outer", None]


async def test_the_id_goes_with_tasks_and_threads_started_inside(lines):
    async def serve():
        await asyncio.sleep(0)
        LOGGER.info("served")

    with correlated("call-7"):
        task = asyncio.create_task(serve())
        await asyncio.to_thread(LOGGER.info, "threaded")
    await task
    assert [line["correlation"] for line in lines()] == ["call-7", "call-7"]


async def test_calls_served_at_once_keep_their_ids_apart():
    async def serve(name):
        with correlated(name):
            for _ in range(3):
                await asyncio.sleep(0)
                assert ground.correlation_id() == name

    await asyncio.gather(*(serve(f"call-{n}") for n in range(10)))
    assert ground.correlation_id() == ""


def test_a_thread_of_its_own_has_no_id():
    found = []
    with correlated("call-7"):
        thread = threading.Thread(target=lambda: found.append(ground.correlation_id()))
        thread.start()
        thread.join()
    assert found == [""]
