"""Suites in Redis: by content, once, in small values, and fetched as they are needed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from redis.exceptions import ConnectionError

from ground.redis.connect import target_of
from ground.redis.url import parse_redis_url
from jail.errors import SandboxFailure, SandboxUnreachable
from jail.judge.models import JudgeCase, SuiteRef
from jail.judge.packed import BLOB, pack
from jail.judge.suite import case_of
from worker.errors import QueueUnavailable
from worker.judging.reading import SuiteReader
from worker.queue.suite_store import RENEW, TTL, SuiteStore, TooLate, blob_key, suite_key


def cases(count: int, size: int = 10) -> list[JudgeCase]:
    return [JudgeCase(input=f"{n} " * (size // 2), expected=f"{n}") for n in range(count)]


STRANGE = [
    JudgeCase(input="é\0\r\n", expected=["a", "b"]),
    JudgeCase(check="assert f() == '\u2028'"),
    JudgeCase(input="x" * 3_000_000, expected=["y" * 70_000, ""]),
    JudgeCase(expected=None),
    JudgeCase(input="\x01" * 60_000, expected="\x02" * 60_000),
]


@pytest.fixture
async def reader(redis):
    reader = SuiteReader(target_of(redis))
    yield reader
    await reader.close()


@pytest.fixture
def store(redis) -> SuiteStore:
    return SuiteStore(target_of(redis), "code", patience=0.0)


@pytest.mark.parametrize(
    "given", [STRANGE, cases(10_000), cases(12, 100_000)], ids=["strange", "many", "large"]
)
async def test_what_was_sent_is_read(store, reader, given) -> None:
    packed = pack(given)
    store.send(packed)

    suite = await reader.open(packed.ref)
    read = [await suite.case(index) for index in range(len(suite))]
    await suite.close()

    assert read == [case_of(case) for case in given]


def test_no_value_is_above_a_mebibyte_and_all_expire(redis, store) -> None:
    store.send(pack(STRANGE))

    keys = redis.keys("penstock:*")
    assert len(keys) >= 5
    assert max(redis.strlen(key) for key in keys) <= BLOB + 1
    assert all(TTL - 60 < redis.ttl(key) <= TTL for key in keys)


def test_a_suite_that_is_there_is_not_sent_again(redis, store) -> None:
    packed = pack(cases(1000))
    store.send(packed)
    kept = {key: redis.get(key) for key in redis.keys("penstock:*")}
    for key in kept:
        redis.set(key, b"seen", ex=100)

    store.send(packed)
    another = SuiteStore(target_of(redis), "code", patience=0.0)
    another.send(packed)

    assert {redis.get(key) for key in kept} == {b"seen"}  # nothing was written
    assert all(redis.ttl(key) > 100 for key in kept)  # by the other process, which asked


def test_a_machine_that_has_just_started_sends_its_first_suite(redis, store, monkeypatch) -> None:
    packed = pack(cases(10))
    monkeypatch.setattr("worker.queue.suite_store.time", SimpleNamespace(monotonic=lambda: 2.0))

    store.send(packed)

    assert redis.exists(suite_key(packed.ref.sha256)) == 1


def test_only_what_is_missing_is_sent(redis, store) -> None:
    packed = pack(cases(50, 20_000))
    store.send(packed)
    digests = list(packed.blobs)
    lost, kept = blob_key(digests[0]), blob_key(digests[1])
    redis.delete(lost)
    redis.set(kept, b"seen")

    store.send(packed, again=True)

    assert redis.exists(lost) == 1
    assert redis.get(kept) == b"seen"


def test_a_client_remembers_so_many_suites_and_sends_older_ones_again(redis, monkeypatch) -> None:
    monkeypatch.setattr("worker.queue.suite_store.KNOWN", 2)
    store = SuiteStore(target_of(redis), "code", patience=0.0)
    suites = [pack(cases(count)) for count in (1, 2, 3)]
    for packed in suites:
        store.send(packed)
    assert [store.knows(packed) for packed in suites] == [False, True, True]


def test_texts_that_repeat_are_kept_once() -> None:
    same = "1" * 100_000
    packed = pack([JudgeCase(input=same, expected=str(n)) for n in range(10)])

    assert sum(map(len, packed.blobs.values())) < 2 * len(same)


async def test_a_suite_that_is_gone_is_missing(store, reader, redis) -> None:
    packed = pack(cases(10, 100_000))
    store.send(packed)
    redis.delete(suite_key(packed.ref.sha256))

    with pytest.raises(SandboxFailure) as gone:
        await reader.open(packed.ref)

    assert gone.value.reason == "suite_missing"


async def test_a_value_that_is_not_what_its_name_says_is_missing(store, reader, redis) -> None:
    packed = pack(cases(10))
    store.send(packed)
    (digest,) = packed.blobs
    redis.set(blob_key(digest), b'r[["1","1",""]]')
    suite = await reader.open(packed.ref)

    with pytest.raises(SandboxFailure) as gone:
        await suite.case(0)

    assert gone.value.reason == "suite_missing"


async def test_nothing_is_fetched_that_nobody_comes_near(store, reader, redis) -> None:
    packed = pack(cases(20, 200_000))
    store.send(packed)
    suite = await reader.open(packed.ref)

    await suite.case(0)
    first = set(reader._kept)
    await suite.case(1)
    await suite.case(2)
    await suite.close()

    assert len(first) <= 3  # the manifest, a pack and a text
    assert len(reader._kept) < len(packed.blobs) / 2


def gets_of(client) -> int:
    return int(client.info("commandstats").get("cmdstat_get", {"calls": 0})["calls"])


async def test_a_worker_fetches_a_suite_once_for_many_programs(real_redis) -> None:
    target = target_of(real_redis)
    packed = pack(cases(20, 200_000))
    SuiteStore(target, "code", patience=0.0).send(packed)
    reader = SuiteReader(target)
    before = gets_of(real_redis)
    for _ in range(16):
        suite = await reader.open(packed.ref)
        for index in range(20):
            await suite.case(index)
        await suite.close()
    await reader.close()

    assert gets_of(real_redis) - before == len(packed.blobs) + 1


async def test_a_suite_lives_on_while_a_long_program_is_judged(store, reader, redis) -> None:
    packed = pack(cases(20, 200_000))
    store.send(packed)
    suite = await reader.open(packed.ref)
    keys = redis.keys("penstock:*")
    for key in keys:
        redis.expire(key, 100)
    reader._renewed[packed.ref.sha256] -= RENEW  # so much time has passed

    await suite.case(0)
    await suite.close()

    assert all(redis.ttl(key) > TTL - 60 for key in keys)


async def test_an_outage_of_redis_amid_a_program_costs_no_case(proxy, real_redis) -> None:
    packed = pack(cases(20, 200_000))
    SuiteStore(target_of(real_redis), "code", patience=0.0).send(packed)
    reader = SuiteReader(proxy.target)
    suite = await reader.open(packed.ref)

    proxy.lose_replies(6)

    assert (await suite.case(0)).expected == (b"0",)
    assert proxy.losing == 0
    await reader.close()


async def test_who_asks_late_in_an_outage_asks_once(monkeypatch) -> None:
    reader = SuiteReader(parse_redis_url("redis://127.0.0.1:1"))
    monkeypatch.setattr("worker.judging.reading.PATIENCE", 0.0)

    for digest in "ab":
        with pytest.raises(SandboxUnreachable):
            await reader.fetched(digest, blob_key(digest))

    assert reader._outage._failures == 2
    await reader.close()


async def test_what_a_worker_remembers_is_bounded(store, redis) -> None:
    reader = SuiteReader(target_of(redis), kept=500_000)
    packed = pack(cases(20, 200_000))
    store.send(packed)
    suite = await reader.open(packed.ref)
    for index in range(20):
        await suite.case(index)

    assert reader._kept.size == sum(map(len, reader._kept.values())) <= 500_000
    await reader.close()


async def test_a_count_that_does_not_fit_is_refused(store, reader) -> None:
    packed = pack(cases(10))
    store.send(packed)

    with pytest.raises(SandboxFailure):
        await reader.open(SuiteRef(sha256=packed.ref.sha256, count=9))


def test_a_redis_that_does_not_answer_is_named(redis) -> None:
    away = SuiteStore(parse_redis_url("redis://127.0.0.1:1"), "code", patience=0.0)

    with pytest.raises(QueueUnavailable):
        away.send(pack(cases(1)))


class Line:
    """A lock that says when so many wait for it without end."""

    def __init__(self, count: int) -> None:
        self._lock, self._waiting = threading.Lock(), threading.Semaphore(0)
        self._count = count
        self.release = self._lock.release

    def acquire(self, timeout: float = -1) -> bool:
        if timeout < 0:
            self._waiting.release()
        return self._lock.acquire(timeout=timeout)

    def wait(self) -> None:
        for _ in range(self._count):
            assert self._waiting.acquire(timeout=60)


def test_of_many_that_wait_only_one_asks_a_redis_that_does_not_answer(store, monkeypatch) -> None:
    line, attempts = Line(7), []

    def fails(packed, ends) -> None:
        attempts.append(packed)
        line.wait()
        raise ConnectionError("it does not answer")

    monkeypatch.setattr(store, "_guard", line)
    monkeypatch.setattr(store, "_send", fails)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(store.send, pack(cases(1, 10 + n))) for n in range(8)]
        failures = [one.exception() for one in waiting]

    assert all(isinstance(failure, QueueUnavailable) for failure in failures)
    assert all("it does not answer" in str(failure) for failure in failures)
    assert len(attempts) == 1


def test_who_is_patient_no_longer_waits_for_no_attempt(store, monkeypatch) -> None:
    """Another one is asking again, after a failure since this one came."""
    store._guard.acquire()
    monkeypatch.setattr(store, "_failed", (ConnectionError("it does not answer"), float("inf")))

    with pytest.raises(QueueUnavailable, match="it does not answer"):
        store.send(pack(cases(1)))


def test_who_comes_after_a_failure_asks_again(store, monkeypatch) -> None:
    attempts = []

    def fails(packed, ends) -> None:
        attempts.append(packed)
        raise ConnectionError("it does not answer")

    monkeypatch.setattr(store, "_send", fails)
    for _ in range(2):
        with pytest.raises(QueueUnavailable):
            store.send(pack(cases(1)))

    assert len(attempts) == 2


def test_while_one_pauses_before_its_next_attempt_others_send(redis, monkeypatch) -> None:
    store = SuiteStore(target_of(redis), "code", patience=60.0)
    sent, send = [], store._send

    def fails_once(packed, ends) -> None:
        sent.append(packed.ref)
        if len(sent) == 1:
            raise ConnectionError("it does not answer")
        send(packed, ends)

    first, other = pack(cases(1)), pack(cases(2))
    monkeypatch.setattr(store, "_send", fails_once)
    monkeypatch.setattr("worker.queue.suite_store.time.sleep", lambda _: store.send(other))
    store.send(first)
    store._client.close()

    assert sent == [first.ref, other.ref, first.ref]


def test_a_suite_is_sent_no_further_when_its_calls_time_is_over(redis, store) -> None:
    with pytest.raises(TooLate):
        store.send(pack(cases(1)), ends=0.0)

    assert redis.keys("*") == []


def test_who_has_no_time_left_does_not_wait_for_anothers_sending(redis) -> None:
    store = SuiteStore(target_of(redis), "code", patience=100.0)
    store._guard.acquire()

    with pytest.raises(TooLate):
        store.send(pack(cases(1)), ends=0.0)
