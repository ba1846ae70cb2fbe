"""`penstock top`: what it draws on any terminal, what keys do, and each task in three keys."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import pytest
import redis

import ground
from buffer import RolloutBuffer, TaskConfig
from ground.redis.connect import target_of
from ground.redis.url import RedisTarget
from limiter import TokenBucket
from penstock.changes import Audit, Author
from penstock.fleet import FleetReader, Worker, work
from penstock.fleet.history import History
from penstock.fleet.model import Latency, Queue, Verdict
from penstock.tables import cells_of
from penstock.top.details import Seen, job_of
from penstock.top.model import (
    Age,
    Column,
    Order,
    Place,
    Row,
    Screen,
    Table,
    Text,
    figure,
    name,
    text,
)
from penstock.top.plain import lines_of
from penstock.top.rows import look_of
from penstock.top.views import view
from tests.harness.commands import PENSTOCK
from tests.harness.servers import PrivateRedis, until
from tests.harness.terminal import Terminal
from tests.worker.queue.shares_alone import SharesAlone

pytest.importorskip("textual", reason="penstock-rl[top] is not installed")
from textual import events
from textual.widgets import DataTable

from penstock.top.cells import cell, cut, harmless, widths
from penstock.top.program import Program

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u200bа\u0301" + "你好" * 40 + "\ud800"
TRACEBACK = "Traceback (most recent call last):\n  File x\nValueError: \x1b[31mbroken\x1b[2J"


class Shown:
    """A program in a terminal of Textual's own, and what is to be seen there."""

    def __init__(self, program: Program, pilot: Any) -> None:
        self.program, self._pilot = program, pilot

    @property
    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.program.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def under_the_cursor(self) -> str:
        """The first cell of the one row that has the cursor."""
        (table,) = [one for one in self.program.query(DataTable) if one.show_cursor]
        return str(table.get_row_at(table.cursor_row)[0])

    async def press(self, *keys: str) -> str:
        for key in keys:
            await self.program.press(key)
            await self.program.show()
        return await self.drawn()

    async def drawn(self) -> str:
        await self.program.show()
        await self._pilot.pause()
        return self.text

    async def refresh(self) -> str:
        await self.program.refresh_fleet()
        return await self.drawn()

    async def paste(self, said: str) -> None:
        self.program.post_message(events.Paste(said))
        await self._pilot.pause()

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await self._pilot.pause()
        while len(self.lines) != height:  # on a busy machine it is drawn a moment later
            await self._pilot.pause(0.01)


@asynccontextmanager
async def running(
    reader: FleetReader, author: Author | None = None, size: tuple[int, int] = (80, 24)
) -> AsyncIterator[Shown]:
    """It looks once, and then if its test says so."""
    program = Program(reader, author or Author("", ""), every=3600)
    async with program.run_test(size=size) as pilot:
        shown = Shown(program, pilot)
        await shown.refresh()
        yield shown


def test_a_queue_that_is_held_up_looks_so_while_it_has_jobs() -> None:
    none = Latency((), 0.0)
    full = Queue("code", 1, 0.0, 0, 0, 0, 1, {}, {}, none, none)
    looks = {one: look_of(replace(full, verdict=one)) for one in get_args(Verdict)}
    assert looks == {
        "idle": "", "working": "", "workers are full": "", "no workers": "bad",
        "suspended": "warn", "paused": "warn", "held back": "warn",
    }  # fmt: skip
    assert look_of(replace(full, verdict="suspended", depth=0)) == ""
    assert look_of(replace(full, depth=0, paused=True)) == "warn"


@pytest.mark.parametrize("width", [1, 2, 7, 20, 80, 300])
def test_hostile_text_takes_its_place_and_no_more(width: int) -> None:
    for said in (HOSTILE, "plain", "", "a\tb", "line\nbreak", "é" * 100, "[red]no markup[/]"):
        for kind in ("name", "text", "figure"):
            line = cut(harmless(said), width, kind)
            assert cells_of(line) <= width
            assert line.isprintable()
            line.encode()
            assert cell(harmless(said), Column("x", kind), width, "bad").plain == line


def test_a_long_name_is_cut_in_its_middle_and_a_text_at_its_end() -> None:
    assert cut("queue-of-the-first-experiment", 11, "name") == "queue…iment"
    assert cut("it is held back", 8, "text") == "it is h…"


@pytest.mark.parametrize("width", [40, 80, 200])
def test_long_names_never_push_figures_off(width: int) -> None:
    columns = (name("QUEUE"), Column("wait"), Column("run"), name("worker"), text("why"))
    rows = [["q" * 500, "123,456", "17", "w" * 300, "x" * 900], ["code", "1", "0", "", ""]]
    wide = widths(columns, rows, width)
    assert wide[1:3] == [7, 3]
    assert sum(wide) + 2 * (len(wide) - 1) <= width


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
        lines = lines_of(screen, 80, height)
        assert len(lines) <= height
        assert {"A0", "A1", "B0", "B1"} <= set(lines)
        assert any("more" in line for line in lines)
    assert len(lines) > 55, "what one table does not need is the other's"


async def test_the_cursor_goes_over_rows_and_a_text_is_scrolled(fake: Any) -> None:
    rows = tuple(Row((f"r{n}",), Place("job", f"{n}")) for n in range(3))
    table = Table((name("FACT"),), (*rows[:2], Row(("no place",)), rows[2]))
    async with FleetReader(target_of(fake)) as reader, running(reader) as shown:
        shown.program.shown = Screen("job", (table, Text("TEXT", "\n".join("x" * 50))))
        await shown.drawn()
        await shown.press("down", "down")
        assert shown.under_the_cursor == "r2", "over what cannot be opened"
        await shown.press("down")
        assert (shown.under_the_cursor, shown.lines[1]) == ("r2", " r0")
        assert "lines 35-56 of 57" in await shown.press("end", "up")
        assert shown.lines[1:3] == ["x", "x"]
        await shown.press("home")
        assert (shown.under_the_cursor, shown.lines[1]) == ("r0", " FACT")


@pytest.fixture
def fake() -> Iterator[ground.Client]:
    import fakeredis

    options = {"server": fakeredis.FakeServer()}
    client = ground.connect(RedisTarget("fake", (("fake", 0),), options=options))
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
    until(
        lambda: buffer.sweep() is not None and buffer.catalog.stats().get("expired"), "its timeout"
    )
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
    async with FleetReader(target_of(fake)) as reader:
        for task, steps in TASKS.items():
            assert len(steps) <= 3
            async with running(reader, Author("ann", "here")) as shown:
                for key, words in steps:
                    said = await shown.press(key)
                    assert [word for word in words if word not in said] == [], task
        (noted,) = await Audit(reader.client).latest()
        assert (noted.who, noted.address, noted.what, noted.target) == (
            "ann", "here", "change gate: limit 8", "rewards",
        )  # fmt: skip


async def test_every_screen_fits_every_terminal_and_steers_none(fake: Any) -> None:
    fill(fake)
    async with FleetReader(target_of(fake)) as reader, running(reader) as shown:
        for place in ("1", "2", "3", "4", "5", "6", "7", "8", "?", "f"):
            for key in (place, "end", "enter"):
                await shown.press(key)
                for width, height in ((20, 5), (80, 24), (200, 60)):
                    await shown.resize(width, height)
                    assert len(shown.lines) == height
                    assert all(cells_of(line) <= width for line in shown.lines)
                    assert all(line.isprintable() for line in shown.lines)


async def test_a_terminal_of_another_size_is_drawn_for_it_at_once(fake: Any) -> None:
    fill(fake)
    async with FleetReader(target_of(fake)) as reader, running(reader) as shown:
        await shown.resize(120, 24)
        async with asyncio.timeout(100):
            while len(shown.lines[0]) <= 80:  # at its right end is the time
                await shown._pilot.pause(0.01)


async def test_keys_that_come_at_once_are_done_one_after_the_other(fake: Any) -> None:
    fill(fake)
    async with FleetReader(target_of(fake)) as reader, running(reader) as shown:
        await shown._pilot.press("5", "plus", "backspace", "1", "6", "enter", "2", "enter", "q")
        assert shown.program.look.place.kind == "queue"
    assert TokenBucket(fake, "rewards", limit=9).sync.status().limit == 16


async def test_a_queue_shows_who_waits_in_which_share(fake: Any) -> None:
    alone = SharesAlone(fake, target_of(fake))
    alone.enqueue("training", 3)
    alone.enqueue("evaluation", 2)
    alone.weigh({"training": 4})
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader, size=(80, 60)) as shown:
        await shown.press("2", "enter")
        said = [line.split()[:3] for line in (await shown.refresh()).splitlines()]
    at = said.index(["SHARE", "wait", "weight"])
    rows = sorted(said[at + 1 : at + 3])
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
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader) as shown:
        before = len(looks)
        assert "worker w1" in await shown.press("4", "enter")
        assert "No worker listens" in await shown.press("2", "enter")
        assert "w1" in await shown.press("4")
        assert len(looks) == before
        await shown.refresh()
    assert len(looks) == before + 1


async def test_a_change_is_asked_about_and_no_other_key_makes_it(fake: Any) -> None:
    fill(fake)
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader, Author("ann", "here")) as shown:
        asked = (await shown.press("2", "p")).splitlines()[-1]
        assert asked.startswith("Pause queue")
        assert asked.endswith("? y or n _"), "of a long name the question's end is left"
        assert "nothing was changed" in await shown.press("n")
        assert "Pause queue code? y or n" in await shown.press("down", "p")
        assert "nothing was changed" in await shown.press("enter")
        assert not fake.hexists("penstock:work:{code}", "paused")
        assert "pause: done" in await shown.press("p", "y")
        assert fake.hget("penstock:work:{code}", "paused") == b"1"
        assert "resume: done" in await shown.press("p", "y")
        assert "a limit is a whole number" in await shown.press("5", "+", "backspace", "x", "enter")
        assert "limit: must be" in await shown.press("-", "backspace", "0", "enter")
        assert "lower limit: done" in await shown.press("-", "enter")
        assert TokenBucket(fake, "rewards", limit=9).sync.status().limit == 2


async def test_permits_of_no_job_are_rows_of_their_own(fake: Any) -> None:
    gate = TokenBucket(fake, "api", limit=5)
    permits = [gate.sync.acquire() for _ in range(3)]
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader, size=(160, 40)) as shown:
        said = await shown.press("5", "enter", "tab", "down")
        assert [one.id for one in permits if one.id not in said] == []
        assert "cancel" not in said, "they are no jobs"
    for permit in permits:
        permit.release()
    assert (job_of(permits[0].id), job_of("a:b:1786000000000000")) == (None, Place("job", "a:b"))


async def test_marked_jobs_are_changed_together(fake: Any) -> None:
    fill(fake)
    for n in range(3):
        fake.hset(f"rq:job:bad{n}", mapping=job_fields("failed", ended_at="2026-08-02T10:11:12Z"))
        fake.zadd("rq:failed:code", {f"bad{n}": 1e10})
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader, Author("ann", "here")) as shown:
        assert "Run 4 marked jobs again?" in await shown.press("3", "a", "r")
        await shown.press("escape", "a")
        assert not shown.program.marked
        asked = await shown.press("/", *"bad", "enter", " ", " ", "r")
        assert "Run 2 marked jobs again?" in asked
        await shown.press("y")
        assert sorted(fake.lrange("rq:queue:code", 0, -1)) == [b"bad1", b"bad2", b"waits"]
        (noted,) = await Audit(reader.client).latest()
        assert noted.what == "retry 2 jobs"


async def test_lists_are_filtered_sorted_and_gone_back_to(fake: Any) -> None:
    fill(fake)
    for n in range(3):
        TokenBucket(fake, f"gate{n}", limit=n + 1).sync.configure(limit=n + 1)
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader) as shown:
        await shown.press("5", ">", ">", ">", "s")
        assert [line.split()[0] for line in shown.lines[2:6]] == [
            "rewards", "gate2", "gate1", "gate0",
        ]  # fmt: skip
        await shown.press("down", "down")
        assert shown.under_the_cursor.startswith("gate1")
        assert "gate gate1" in await shown.press("enter")
        await shown.press("escape")
        assert shown.under_the_cursor.startswith("gate1")
        assert "rewards" not in await shown.press("/", *"gate", "enter")
        assert "rewards" in await shown.press("escape")
        assert "group slow" in await shown.press("g", *"slow", "enter")
        assert "nothing has the id 'none'" in await shown.press("g", *"none", "enter")
        assert "group slow" in await shown.press("escape")


async def test_what_is_pasted_is_text_and_makes_no_change(fake: Any) -> None:
    fill(fake)
    async with FleetReader(target_of(fake)) as reader, running(reader) as shown:
        await shown._pilot.press("2", "p")
        await shown.paste("y\n")
        assert not fake.exists("penstock:work:{code}")
        await shown.press("n", "g")
        await shown.paste("slow\nq")
        assert "group slow" in await shown.press("enter")


async def test_of_many_jobs_a_page_is_read(fake: Any) -> None:
    fake.sadd("rq:queues", "rq:queue:code")
    fake.rpush("rq:queue:code", *(f"j{n}" for n in range(3000)))
    pipe = fake.pipeline()
    for n in range(300):
        pipe.hset(f"rq:job:j{n}", mapping=job_fields("queued"))
    pipe.execute()
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader) as shown:
        said = await shown.press("3", "right", "right", "right")
        assert "waiting jobs of all queues: 3,000" in said
        screen = shown.program.shown
        assert screen is not None
        assert screen.lists is not None
        assert len(screen.lists.rows) == 200
        assert "from 201" in await shown.press("]")


async def test_no_job_is_passed_over_on_pages_of_several_queues(fake: Any) -> None:
    """Of one queue 2,000 jobs are looked at for a page, of the other 200."""
    pipe = fake.pipeline()
    for queue, jobs, description in (("long", 2_100, "other"), ("rare", 450, "rare one")):
        pipe.sadd("rq:queues", f"rq:queue:{queue}")
        pipe.rpush(f"rq:queue:{queue}", *(f"{queue}{n}" for n in range(jobs)))
        for n in range(jobs):
            fields = job_fields("queued", description=description)
            pipe.hset(f"rq:job:{queue}{n}", mapping=fields)
    pipe.execute()
    found = set[Any]()
    async with FleetReader(target_of(fake)) as reader:
        fleet, workers = await reader.look()
        seen = Seen(reader, fleet, workers, History())
        start: int | None = 0
        while start is not None:
            place = Place("jobs", state="waiting", start=start)
            screen = await view(place, seen, Order(find="rare"))
            assert screen.lists is not None
            found |= {row.cells[0] for row in screen.lists.rows}
            start = screen.next
    assert found == {f"rare{n}" for n in range(450)}


async def test_where_redis_is_away_a_search_says_so(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake)

    async def away(*_: Any) -> Any:
        raise redis.ConnectionError("nobody listens")

    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader) as shown:
        monkeypatch.setattr("penstock.top.program.find", away)
        assert "cannot look for it now: nobody listens" in await shown.press("g", "x", "enter")


async def test_a_redis_that_is_away_is_said_and_looked_at_again(fake: Any) -> None:
    fill(fake)
    target = target_of(fake)
    async with FleetReader(target) as reader, running(reader) as shown:
        fake.sadd("rq:workers", "rq:worker:w")
        fake.set("rq:suspended", "1")
        fake.set("penstock:gates", "not a set")
        await shown.refresh()
        assert "WRONGTYPE" in await shown.press("down")
        fake.delete("penstock:gates")
        await shown.refresh()
        assert "WRONGTYPE" not in await shown.press("down")


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
    assert "\x1b[?1049l" in terminal.said[-100:], "it is left as it was found"
    limit = TokenBucket(real_redis, "rewards", limit=9).sync.status().limit
    assert limit == 8
