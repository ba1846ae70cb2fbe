"""`penstock top`: what it draws on any terminal, what keys do, and each task in three keys."""

import json
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import redis
from rich.cells import cell_len

import ground
from buffer import RolloutBuffer, TaskConfig
from limiter import TokenBucket
from penstock.changes import Audit, Author
from penstock.fleet import FleetReader, Worker, work
from penstock.top import cursor
from penstock.top.details import job_of
from penstock.top.paper import Column, Paper, fitted, name, text
from penstock.top.program import Program
from penstock.top.screen import (
    Age,
    Line,
    Look,
    Order,
    Place,
    Row,
    Screen,
    Table,
    Text,
    figure,
    lines_of,
)  # fmt: skip
from penstock.top.terminal import Keys
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, until
from tests.harness.terminal import Terminal
from tests.worker.queue.shares_alone import SharesAlone

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u200bа\u0301" + "你好" * 40 + "\ud800"
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: \x1b[31mbroken\x1b[2J"


class Recorder:
    """A terminal that only remembers."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.paper, self.height = Paper(width), height
        self.lines: Sequence[Line] = []
        self.chosen: frozenset[int] = frozenset()

    async def keys(self) -> AsyncIterator[str]:
        for key in ():
            yield key

    def draw(self, lines: Sequence[Line], chosen: frozenset[int]) -> None:
        self.lines, self.chosen = lines, chosen

    @property
    def text(self) -> str:
        return "\n".join(line.text for line in self.lines)

    @property
    def under_the_cursor(self) -> str:
        return "\n".join(self.lines[at].text for at in sorted(self.chosen))


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("width", [1, 2, 7, 20, 80, 300])
def test_hostile_text_takes_its_place_and_no_more(encoding: str, width: int) -> None:
    paper = Paper(width, encoding)
    for said in (HOSTILE, "plain", "", "a\tb", "line\nbreak", "é" * 100):
        for middle in (False, True):
            line = paper.cut(said, width, middle=middle)
            assert cell_len(line) <= width
            assert line.isprintable()
            line.encode(encoding)
        assert cell_len(paper.padded(said, width, "name")) == width


def test_a_long_name_is_cut_in_its_middle_and_a_text_at_its_end() -> None:
    paper = Paper(80)
    assert paper.cut("queue-of-the-first-experiment", 11, middle=True) == "queue…iment"
    assert paper.cut("it is held back", 8) == "it is h…"
    assert Paper(80, "ascii").cut("it is held back", 8) == "it is h~"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_long_names_never_push_figures_off(width: int) -> None:
    columns = (name("QUEUE"), Column("wait"), Column("run"), name("worker"), text("why"))
    rows = [("q" * 500, "123,456", "17", "w" * 300, "x" * 900), ("code", "1", "0", "", "")]
    heading, lines = Paper(width).rows(columns, rows)
    assert all(cell_len(line) <= width for line in (heading, *lines))
    assert "123,456   17" in lines[0]
    assert lines[1].split() == ["code", "1", "0"]


def test_where_there_is_no_room_texts_go_first_then_the_last_figures() -> None:
    columns = (name("QUEUE"), Column("wait"), Column("run"), text("why"))
    natural = [100, 7, 3, 100]
    assert fitted(columns, natural, 300) == natural
    assert sum(fitted(columns, natural, 80)) + 6 == 80
    assert fitted(columns, natural, 22)[3] == 0
    assert fitted(columns, natural, 18)[1:] == [7, 0, 0]


def test_figures_are_written_as_they_are_read() -> None:
    said = [figure(cell) for cell in (None, "x", 1234567, 0.25, Age(0.0301), Age(59.7), Age(400))]
    assert said == ["", "x", "1,234,567", "0.25", "30 ms", "60 s", "7 min"]


def test_rows_are_sorted_by_what_they_are_and_those_without_a_value_come_last() -> None:
    rows = [Row(("b", 10)), Row(("a", None)), Row(("c", 9))]
    assert [row.cells[0] for row in Order(1).of(rows)] == ["c", "b", "a"]
    assert [row.cells[0] for row in Order(1, down=True).of(rows)] == ["b", "c", "a"]
    assert [row.cells[0] for row in Order(find="C").of(rows)] == ["c"]


def test_tables_of_the_overview_share_the_height() -> None:
    def table(heading: str, many: int) -> Table:
        rows = tuple(Row((f"{heading}{n}",), Place("queue", f"{n}")) for n in range(many))
        return Table((name(heading),), rows)

    screen = Screen("overview", (table("A", 3), table("B", 1000)), bounded=True)
    for height in (10, 24, 60):
        lines = [line.text for line in lines_of(screen, Paper(80), height, Order())]
        assert len(lines) <= height
        assert {"A0", "A1", "B0", "B1"} <= set(lines)
        assert any("more" in line for line in lines)
    assert len(lines) > 55, "what one table does not need is the other's"


def test_keys_are_known_however_their_bytes_arrive() -> None:
    keys = Keys("utf-8")
    assert keys.feed(b"j\x1b[A\x1bOB\r\t\x7f") == ["j", "up", "down", "enter", "tab", "backspace"]
    assert (keys.feed(b"\x1b"), keys.feed(b"[5"), keys.feed(b"~")) == ([], [], ["page-up"])
    assert (keys.feed("é".encode()[:1]), keys.feed("é".encode()[1:])) == ([], ["é"])
    assert keys.feed(b"\x1bq") == ["escape", "q"]
    assert (keys.feed(b"\x1b"), keys.begun, keys.alone()) == ([], True, ["escape"])
    assert keys.feed(b"\x1b[200~\x00x") == ["x"], "what is not known is left out"


def test_the_cursor_goes_over_rows_and_a_text_is_scrolled() -> None:
    rows = tuple(Row((f"r{n}",), Place("job", f"{n}")) for n in range(3))
    screen = Screen("job", (Table((name("FACT"),), rows), Text("TEXT", "\n".join("x" * 50))))
    lines, look = lines_of(screen, Paper(80), 10, Order()), Look(Place("job"))
    cursor.move(lines, look, 10, "down")
    cursor.move(lines, look, 10, "down")
    assert cursor.row_of(lines, look) is rows[2]
    cursor.move(lines, look, 10, "down")
    assert (cursor.row_of(lines, look), look.top) == (rows[2], 1)
    cursor.turn(lines, look, 10, "end")
    assert look.top == len(lines) - 10
    cursor.turn(lines, look, 10, "home")
    assert (cursor.row_of(lines, look), look.top) == (rows[0], 0)


@pytest.fixture
def fake() -> Iterator[ground.Client]:
    import fakeredis

    options = {"server": fakeredis.FakeServer()}
    client = ground.connect(ground.RedisTarget("fake", (("fake", 0),), options=options))
    yield client
    client.close()


def fill(redis: Any) -> None:
    """A queue that nobody works on, a failed job of a worker, a gate, and a group that timed out;
    with names and texts that would steer a terminal."""
    redis.sadd("rq:queues", "rq:queue:code", f"rq:queue:{HOSTILE[:-1]}")
    redis.rpush("rq:queue:code", "waits")
    redis.hset("rq:job:waits", mapping=job_fields("queued", description=HOSTILE[:-1]))
    redis.hset("rq:job:broken", mapping=job_fields(
        "failed", worker_name="w1", started_at="2026-08-02T10:11:14.000000Z",
        ended_at="2026-08-02T10:11:19.000000Z", exc_info=TRACEBACK,
    ))  # fmt: skip
    redis.zadd("rq:failed:code", {"broken": 2e10})
    TokenBucket(redis, "rewards", limit=4).sync.configure(limit=4)
    config = TaskConfig(group_size=2, group_timeout_seconds=0.001, min_timeout_group_size_ratio=0.9)
    buffer = RolloutBuffer(redis, "math", config).sync
    buffer.write({"instance_id": "slow", "uid": "0", "messages": [], "reward": 1})
    until(lambda: buffer.sweep() is not None and buffer.stats().get("expired"), "its timeout")
    buffer.close()


def job_fields(status: str, **fields: str) -> dict[str, str]:
    data = json.dumps(["worker.jobs.run_code", None, [{"code": "print(1)\x1b[2J"}], {}])
    return {"status": status, "origin": "code", "data": data,
            "enqueued_at": "2026-08-02T10:11:12.000000Z", **fields}  # fmt: skip


# Each key, and what is to be seen after it.
TASKS: dict[str, list[tuple[str, list[str]]]] = {
    "why does this queue not move": [("enter", ["No worker listens on queue", "1 wait"])],
    "the last failure's traceback": [("f", ["TRACEBACK", r"ValueError: \u001b[31mbroken"])],
    "which worker ran this job, and what did it wait for": [
        ("3", ["failed jobs of", "broken"]), ("enter", ["w1", "2 s in the queue, 5 s run"]),
    ],
    "which groups time out": [("6", ["ready groups"]), ("t", ["slow", "timeout"])],
    "raise this limit": [
        ("5", ["GATE", "/ filter"]), ("+", ["Limit of gate rewards, now 4: 8"]),
        ("enter", ["raise limit: done", "rewards", " 8 "]),
    ],
}  # fmt: skip
BYTES = {"enter": b"\r", "escape": b"\x1b"}


async def test_each_task_takes_three_keys(fake: Any) -> None:
    fill(fake)
    async with FleetReader(ground.target_of(fake)) as reader:
        for task, steps in TASKS.items():
            assert len(steps) <= 3
            terminal = Recorder()
            program = Program(reader, Author("ann", "here"), terminal)
            await program.refresh()
            for key, words in steps:
                shown = await pressed(program, key)
                assert [word for word in words if word not in shown] == [], task
            assert all(cell_len(line.text) <= 80 for line in terminal.lines)
            assert all(line.text.isprintable() for line in terminal.lines)
        (noted,) = await Audit(reader.client).latest()
        assert (noted.who, noted.address, noted.what, noted.target) == (
            "ann", "here", "change gate: limit 8", "rewards",
        )  # fmt: skip


async def pressed(program: Program, *keys: str) -> str:
    for key in keys:
        await program.press(key)
    program.draw()
    assert isinstance(program.terminal, Recorder)
    return program.terminal.text


async def test_every_screen_fits_every_terminal_and_steers_none(fake: Any) -> None:
    fill(fake)
    async with FleetReader(ground.target_of(fake)) as reader:
        terminal = Recorder()
        program = Program(reader, Author("", ""), terminal)
        await program.refresh()
        for place in ("1", "2", "3", "4", "5", "6", "7", "8", "?", "f"):
            for key in (place, "end", "enter"):
                await program.press(key)
                for width, height in ((20, 5), (80, 24), (200, 60)):
                    terminal.paper, terminal.height = Paper(width), height
                    program.draw()
                    assert len(terminal.lines) == height
                    assert all(cell_len(line.text) <= width for line in terminal.lines)
                    assert all(line.text.isprintable() for line in terminal.lines)


async def test_a_queue_shows_who_waits_in_which_share(fake: Any) -> None:
    alone = SharesAlone(fake, ground.target_of(fake))
    alone.enqueue("training", 3)
    alone.enqueue("evaluation", 2)
    alone.weigh({"training": 4})
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder(height=60))
        await program.refresh()
        await pressed(program, "2", "enter")
        await program.refresh()
        shown = [line.split()[:3] for line in (await pressed(program)).splitlines()]
    at = shown.index(["SHARE", "wait", "weight"])
    rows = sorted(shown[at + 1 : at + 3])
    assert rows == [["evaluation", "2", "1"], ["training", "2", "4"]], "its first one is next"


async def test_a_look_reads_the_workers_once(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake)
    fake.sadd("rq:workers", "rq:worker:w1")
    fake.hset("rq:worker:w1", mapping={"birth": "2026-08-02T10:11:12.000000Z", "queues": "code"})
    read, looks = work.read_workers, list[float]()

    async def counted(client: Any, now: float) -> list[Worker]:
        looks.append(now)
        return await read(client, now)

    monkeypatch.setattr(work, "read_workers", counted)
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder())
        await program.refresh()
        assert "worker w1" in await pressed(program, "4", "enter")
        assert "No worker listens" in await pressed(program, "2", "enter")
        assert "w1" in await pressed(program, "4")
        assert len(looks) == 1
        await program.refresh()
    assert len(looks) == 2


async def test_a_change_is_asked_about_and_no_other_key_makes_it(fake: Any) -> None:
    fill(fake)
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("ann", "here"), Recorder())
        await program.refresh()
        asked = (await pressed(program, "2", "p")).splitlines()[-1]
        assert asked.startswith("Pause queue")
        assert asked.endswith("? y or n _"), "of a long name the question's end is left"
        assert "nothing was changed" in await pressed(program, "n")
        assert "Pause queue code? y or n" in await pressed(program, "down", "p")
        assert "nothing was changed" in await pressed(program, "enter")
        assert not fake.hexists("penstock:work:{code}", "paused")
        assert "pause: done" in await pressed(program, "p", "y")
        assert fake.hget("penstock:work:{code}", "paused") == b"1"
        assert "resume: done" in await pressed(program, "p", "y")
        assert "a limit is a whole number" in await pressed(
            program, "5", "+", "backspace", "x", "enter"
        )
        assert "limit: must be" in await pressed(program, "-", "backspace", "0", "enter")
        assert "lower limit: done" in await pressed(program, "-", "enter")
        assert TokenBucket(fake, "rewards", limit=9).sync.status().limit == 2


async def test_permits_of_no_job_are_rows_of_their_own(fake: Any) -> None:
    gate = TokenBucket(fake, "api", limit=5)
    permits = [gate.sync.acquire() for _ in range(3)]
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder(160, 40))
        await program.refresh()
        shown = await pressed(program, "5", "enter", "tab", "down")
        assert [one.id for one in permits if one.id not in shown] == []
        assert "cancel" not in shown, "they are no jobs"
    for permit in permits:
        permit.release()
    assert (job_of(permits[0].id), job_of("a:b:1786000000000000")) == (None, Place("job", "a:b"))


async def test_marked_jobs_are_changed_together(fake: Any) -> None:
    fill(fake)
    for n in range(3):
        fake.hset(f"rq:job:bad{n}", mapping=job_fields("failed", ended_at="2026-08-02T10:11:12Z"))
        fake.zadd("rq:failed:code", {f"bad{n}": 1e10})
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("ann", "here"), Recorder())
        await program.refresh()
        assert "Run 4 marked jobs again?" in await pressed(program, "3", "a", "r")
        await pressed(program, "escape", "a")
        assert not program.marked
        asked = await pressed(program, "/", *"bad", "enter", " ", " ", "r")
        assert "Run 2 marked jobs again?" in asked
        await pressed(program, "y")
        assert sorted(fake.lrange("rq:queue:code", 0, -1)) == [b"bad1", b"bad2", b"waits"]
        (noted,) = await Audit(reader.client).latest()
        assert noted.what == "retry 2 jobs"


async def test_lists_are_filtered_sorted_and_gone_back_to(fake: Any) -> None:
    fill(fake)
    for n in range(3):
        TokenBucket(fake, f"gate{n}", limit=n + 1).sync.configure(limit=n + 1)
    async with FleetReader(ground.target_of(fake)) as reader:
        terminal = Recorder()
        program = Program(reader, Author("", ""), terminal)
        await program.refresh()
        await pressed(program, "5", ">", ">", ">", "s")
        assert [line.text.split()[0] for line in terminal.lines[2:6]] == [
            "rewards", "gate2", "gate1", "gate0",
        ]  # fmt: skip
        await pressed(program, "down", "down")
        assert terminal.under_the_cursor.startswith("gate1")
        assert "gate gate1" in await pressed(program, "enter")
        await pressed(program, "escape")
        assert terminal.under_the_cursor.startswith("gate1")
        assert "rewards" not in await pressed(program, "/", *"gate", "enter")
        assert "rewards" in await pressed(program, "escape")
        assert "group slow" in await pressed(program, "g", *"slow", "enter")
        assert "nothing is called none" in await pressed(program, "g", *"none", "enter")


async def test_of_many_jobs_a_page_is_read(fake: Any) -> None:
    fake.sadd("rq:queues", "rq:queue:code")
    fake.rpush("rq:queue:code", *(f"j{n}" for n in range(3000)))
    pipe = fake.pipeline()
    for n in range(300):
        pipe.hset(f"rq:job:j{n}", mapping=job_fields("queued"))
    pipe.execute()
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder())
        await program.refresh()
        shown = await pressed(program, "3", "right", "right", "right")
        assert "waiting jobs of all queues: 3,000" in shown
        assert program.screen is not None
        assert program.screen.lists is not None
        assert len(program.screen.lists.rows) == 200
        assert "from 201" in await pressed(program, "]")


async def test_where_redis_is_away_a_search_says_so(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake)

    async def away(*_: Any) -> Any:
        raise redis.ConnectionError("nobody listens")

    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder())
        await program.refresh()
        monkeypatch.setattr("penstock.top.program.find", away)
        assert "cannot look for it now: nobody listens" in await pressed(program, "g", "x", "enter")


async def test_a_redis_that_is_away_is_said_and_looked_at_again(fake: Any) -> None:
    fill(fake)
    async with FleetReader(ground.target_of(fake)) as reader:
        program = Program(reader, Author("", ""), Recorder())
        fake.sadd("rq:workers", "rq:worker:w")
        fake.set("rq:suspended", "1")
        fake.set("penstock:gates", "not a set")
        await program.refresh()
        assert "WRONGTYPE" in await pressed(program, "down")
        fake.delete("penstock:gates")
        await program.refresh()
        assert "WRONGTYPE" not in await pressed(program, "down")


def test_each_task_in_a_real_terminal(
    shared_server: PrivateRedis, real_redis: ground.Client
) -> None:
    fill(real_redis)
    env = {k: v for k, v in os.environ.items() if not k.startswith("PENSTOCK_")}
    env["PENSTOCK_REDIS_URL"] = shared_server.url
    with Terminal([PENSTOCK, "top", "--every", "0.5"], env) as terminal:
        for steps in TASKS.values():
            terminal.shows("overview", "QUEUE", "rewards")
            for key, words in steps:
                terminal.press(BYTES.get(key, key.encode()))
                terminal.shows(*words)
            terminal.press(b"1")
        terminal.shows("overview")
        terminal.resize(40, 120)
        terminal.press(b"?")
        terminal.shows("the latest failed job, with its traceback", "q quit")
        assert max(map(len, terminal.screen)) <= 120
        assert "\x1b]0;" not in terminal.said
        assert "\x1b[31mbroken" not in terminal.said
        terminal.press(b"q")
        assert terminal.ends() == 0, terminal.said[-3000:]
    assert terminal.said.endswith("\x1b[?1049l"), "it is left as it was found"
    limit = TokenBucket(real_redis, "rewards", limit=9).sync.status().limit
    assert limit == 8
