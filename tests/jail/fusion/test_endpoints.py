"""Which sandbox is chosen, by a clock that only the test moves."""

import asyncio
from contextlib import ExitStack, suppress

import pytest

from ground.errors import SettingError
from jail.errors import SandboxBusy, SandboxUnfit, SandboxUnreachable
from jail.fusion.endpoints import Endpoints, run_code_url

DOWN = SandboxUnreachable("no connection", reason="connect")


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def two(clock):
    return Endpoints(["http://a/run_code", "http://b/run_code"], clock)


def fail(endpoints, failure=DOWN):
    """One program fails wherever it was sent; says where that was."""
    with suppress(type(failure)), endpoints.borrow() as endpoint:
        raise failure
    return endpoint


def chosen(endpoints, times=50):
    """Where programs go that come one after the other, and do not end well or badly."""
    shown = set()
    for _ in range(times):
        with suppress(asyncio.CancelledError), endpoints.borrow() as endpoint:
            shown.add(endpoint.shown)
            raise asyncio.CancelledError
    return shown


def test_programs_spread_evenly(clock):
    endpoints = two(clock)
    with ExitStack() as held:
        for _ in range(10):
            held.enter_context(endpoints.borrow())
        assert [endpoint.in_flight for endpoint in endpoints.all] == [5, 5]
    assert [endpoint.in_flight for endpoint in endpoints.all] == [0, 0]


def test_the_least_loaded_is_chosen(clock):
    endpoints = two(clock)
    endpoints.all[0].in_flight = 3
    with ExitStack() as held:
        assert {held.enter_context(endpoints.borrow()).shown for _ in range(3)} == {
            "http://b/run_code"
        }


def test_one_that_failed_is_set_aside_and_then_tried_by_one_program_alone(clock):
    endpoints = two(clock)
    bad = fail(endpoints)
    assert bad.shown not in chosen(endpoints)
    clock.now += 0.5
    with ExitStack() as held:
        first, second = (held.enter_context(endpoints.borrow()) for _ in range(2))
        assert {first, second} == set(endpoints.all)
        third = held.enter_context(endpoints.borrow())
        assert third is not bad


def test_a_trial_that_succeeds_makes_it_well(clock):
    endpoints = two(clock)
    bad = fail(endpoints)
    clock.now += 0.5
    endpoints.all[endpoints.all[0] is bad].in_flight = 5
    with endpoints.borrow() as endpoint:
        assert endpoint is bad
    assert (bad.failures, bad.on_trial) == (0, False)


def test_a_cancelled_trial_decides_nothing_and_frees_the_place(clock):
    endpoints = two(clock)
    bad = fail(endpoints)
    clock.now += 0.5
    assert bad.shown in chosen(endpoints)
    assert (bad.failures, bad.on_trial, bad.in_flight) == (1, False, 0)


def test_the_time_aside_doubles_up_to_a_bound(clock):
    endpoints = Endpoints(["http://a/run_code"], clock)
    times = []
    for _ in range(12):
        endpoint = fail(endpoints)
        times.append(endpoint.aside_until - clock.now)
        clock.now = endpoint.aside_until
    assert times[:8] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert times[-1] == 30


def test_it_stays_aside_for_as_long_as_it_asked(clock):
    endpoints = two(clock)
    busy = fail(endpoints, SandboxBusy("full", reason="http_429", retry_after=7))
    clock.now += 6.9
    assert busy.shown not in chosen(endpoints)
    clock.now += 0.1
    assert busy.shown in chosen(endpoints)


def test_a_wave_of_failures_counts_once(clock):
    endpoints = Endpoints(["http://a/run_code"], clock)
    wave = [endpoints.borrow() for _ in range(100)]
    for borrowed in wave:
        borrowed.__enter__()
    clock.now += 1
    for borrowed in wave:
        assert not borrowed.__exit__(SandboxUnreachable, DOWN, None)
    assert (endpoints.all[0].failures, endpoints.all[0].in_flight) == (1, 0)


def test_failures_of_one_that_is_set_aside_keep_it_there_no_longer(clock):
    endpoints = Endpoints(["http://a/run_code"], clock)
    endpoint = fail(endpoints)
    for _ in range(10):
        clock.now += 0.01
        fail(endpoints)
    assert (endpoint.failures, endpoint.aside_until) == (1, 1000.5)
    with endpoints.borrow():
        pass
    assert endpoint.failures == 0
    clock.now += 0.01
    assert fail(endpoints).failures == 1


def test_what_is_set_aside_is_logged_once_with_its_name_and_reason(clock, caplog):
    endpoints = Endpoints(["http://a/run_code"], clock)
    for _ in range(3):
        fail(endpoints)
    (record,) = caplog.records
    assert record.name == "penstock.worker"
    assert (
        record.getMessage()
        == "sandbox http://a/run_code failed and gets no programs for 0.5 s: connect"
    )


def test_a_success_from_before_the_failure_does_not_make_it_well(clock):
    endpoints = Endpoints(["http://a/run_code"], clock)
    with endpoints.borrow():
        clock.now += 1
        bad = fail(endpoints)
    assert bad.failures == 1


def test_what_speaks_against_the_request_does_not_speak_against_the_endpoint(clock):
    endpoints = two(clock)
    assert fail(endpoints, SandboxUnfit("no cobol", reason="http_422")).failures == 0


def test_with_all_set_aside_the_least_loaded_is_used(clock):
    endpoints = two(clock)
    fail(endpoints)
    fail(endpoints)
    assert [endpoint.failures for endpoint in endpoints.all] == [1, 1]
    assert chosen(endpoints) == {"http://a/run_code", "http://b/run_code"}
    assert not any(endpoint.on_trial for endpoint in endpoints.all)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:8080", "http://h:8080/run_code"),
        ("http://h:8080/", "http://h:8080/run_code"),
        ("https://h/run_code", "https://h/run_code"),
        ("https://h/v2/", "https://h/v2/run_code"),
        ("https://h/run_code?faasInstanceName=s-1", "https://h/run_code?faasInstanceName=s-1"),
        ("https://h?faasInstanceName=s-1", "https://h/run_code?faasInstanceName=s-1"),
    ],
)
def test_a_base_or_the_whole_url_may_be_given(given, url):
    assert run_code_url(given) == url


@pytest.mark.parametrize(
    "given",
    [
        "", "localhost:8080", "ftp://h", "http://", "/run_code", "http://h:99999", "http://h:x",
        "http://[::1", "http://xn--zz", "http://h\n\0",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused_by_name(given):
    with pytest.raises(SettingError, match="sandbox_fusion_url: must look like http://"):
        run_code_url(given)


def test_no_sandbox_at_all_is_refused():
    with pytest.raises(SettingError, match="names no sandbox"):
        Endpoints([])


def test_what_is_shown_of_a_url_holds_no_secret():
    [endpoint] = Endpoints(["https://me:hunter2@h:1/run_code?key=s3cret#x"]).all
    assert endpoint.shown == "https://h:1/run_code"
