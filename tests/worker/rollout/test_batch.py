"""Batches: kept line by line, shown, and taken up again after a kill."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from rich.console import Console

from tests.harness import doomed, killing
from tests.harness.scripted_model import called, refused, said, scripted_model
from tests.worker.rollout.players import QueueTool, code, in_text, playing, script, user
from worker.rollout import Rollout, RolloutRequest, Trajectory, run_batch
from worker.rollout.dump import RolloutDump


def rows(folder: Path, step: int = 0) -> list[dict[str, Any]]:
    lines = (folder / f"{step}.jsonl").read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def requests(number: int, **more: Any) -> list[RolloutRequest]:
    return [
        RolloutRequest(messages=user(f"{n}"), request_id=f"s-{n}", **more) for n in range(number)
    ]


async def test_a_line_is_as_the_seeds_sample(interpreter, tmp_path) -> None:
    text = f"<think>\nLet me see.\n{in_text('print(200000 * 1.1)')}"
    with script(said(text), said("#### 220000.0")) as model:
        async with playing(model, interpreter, score=lambda _: 1.0) as rollout:
            messages = [{"role": "system", "content": "You are a math expert."}, *user("How much?")]
            request = rollout.request(messages, request_id="s-1", step=3)
            await run_batch(rollout, [request], rollout_data_dir=tmp_path)
    (row,) = rows(tmp_path, step=3)
    assert list(row)[:4] == ["input", "output", "score", "step"]
    assert row["input"].startswith("system\nYou are a math expert.\n\n# Tools\n\nYou may call")
    assert row["input"].endswith("\nuser\nHow much?\nassistant\n")
    assert (
        row["output"] == f"assistant\n{text}\ntool\n220000.00000000003\n\nassistant\n#### 220000.0"
    )
    assert (row["score"], row["step"], row["request_id"]) == (1.0, 3, "s-1")
    assert row["stop_reason"] == "stop"
    assert "traj_masked" not in row


async def test_a_call_that_the_server_read_is_dumped_as_the_model_wrote_it(
    interpreter, tmp_path
) -> None:
    with script(called(code("print(1)"), text="Hm."), said("done")) as model:
        async with playing(model, interpreter) as rollout:
            await run_batch(rollout, [rollout.request(user("?"))], rollout_data_dir=tmp_path)
    (row,) = rows(tmp_path)
    assert row["output"].startswith(f"assistant\nHm.\n{in_text('print(1)')}\ntool\n1\n")


async def test_masked_ones_count_neither_way_and_the_others_go_on(tmp_path) -> None:
    def answer(request: dict[str, Any], _: int) -> Any:
        number = int(request["messages"][0]["content"])
        return refused(500, "out of order") if number % 2 else said("#### 1")

    with scripted_model(answer) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            batch = await run_batch(rollout, requests(6), rollout_data_dir=tmp_path, concurrency=2)
    assert [trajectory.masked for trajectory in batch.trajectories] == [False, True] * 3
    assert (len(batch.masked), batch.mean_score) == (3, 1.0)
    masked = [row for row in rows(tmp_path) if row.get("traj_masked")]
    assert {row["request_id"] for row in masked} == {"s-1", "s-3", "s-5"}
    assert {row["score"] for row in masked} == {None}
    assert all(row["traj_exit_reason"].startswith("model: InternalServerError") for row in masked)


async def test_what_was_played_is_not_played_again_and_what_was_masked_is(tmp_path) -> None:
    (tmp_path / "0.jsonl").write_text(
        '{"score": 0.5, "step": 0, "request_id": "s-0"}\n'
        '{"score": null, "step": 0, "request_id": "s-1", "traj_masked": 1}\n'
        '{"score": 1.0, "step": 0, "requ'
    )
    with script(said("#### 1")) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            batch = await run_batch(rollout, requests(3), rollout_data_dir=tmp_path)
            again = await run_batch(rollout, requests(3), rollout_data_dir=tmp_path)
            other = await run_batch(rollout, requests(1, step=1), rollout_data_dir=tmp_path)
    assert (batch.resumed, [t.request.request_id for t in batch.trajectories]) == (
        1,
        ["s-1", "s-2"],
    )
    assert (again.resumed, again.trajectories, again.mean_score) == (3, [], None)
    assert (other.resumed, len(other.trajectories)) == (0, 1)
    assert sorted(row["request_id"] for row in rows(tmp_path)) == ["s-0", "s-1", "s-2"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0.jsonl", "1.jsonl"]


async def test_what_ends_lines_elsewhere_ends_none_of_a_dump(tmp_path) -> None:
    text = "one\u2028two\x85three\x0cfour\x1cfive"
    with script(said(text)) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            await run_batch(rollout, requests(1), rollout_data_dir=tmp_path)
            whole = (tmp_path / "0.jsonl").read_bytes()
            again = await run_batch(rollout, requests(1), rollout_data_dir=tmp_path)
    assert (again.resumed, (tmp_path / "0.jsonl").read_bytes()) == (1, whole)
    assert json.loads(whole)["output"] == f"assistant\n{text}"


async def test_a_line_that_ends_within_a_character_is_dropped(tmp_path) -> None:
    kept = '{"output": "é", "step": 0, "request_id": "s-0"}\n'.encode()
    (tmp_path / "0.jsonl").write_bytes(kept + kept[: kept.index(b"\xa9")])
    with script(said("é")) as model:
        async with playing(model) as rollout:
            batch = await run_batch(rollout, requests(2), rollout_data_dir=tmp_path)
    assert (batch.resumed, len(rows(tmp_path))) == (1, 2)
    assert (tmp_path / "0.jsonl").read_bytes().startswith(kept)


async def test_lines_of_others_are_kept_where_a_batch_is_resumed(tmp_path) -> None:
    others = [{"input": "q", "output": "a", "score": 1.0, "step": 0}] * 2
    masked = {**others[0], "request_id": "s-0", "traj_masked": 1}
    lines = [f"{json.dumps(row)}\n" for row in (*others, masked)]
    (tmp_path / "0.jsonl").write_text("".join(lines) + '{"input": "cut')
    assert RolloutDump(tmp_path).resume(0) == set()
    assert rows(tmp_path) == others


async def test_a_disk_that_takes_a_piece_at_a_time_gets_whole_lines(tmp_path, monkeypatch) -> None:
    writing = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writing(file, data[:7]))
    with script(said("x" * 100)) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            await run_batch(rollout, requests(2), rollout_data_dir=tmp_path)
    assert sorted(row["request_id"] for row in rows(tmp_path)) == ["s-0", "s-1"]


def plays(url: str, folder: str) -> None:
    """A batch of twenty that is killed after its seventh line."""
    import asyncio

    async def play() -> None:
        async with AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as client:
            rollout = Rollout(client, "scripted", score=lambda _: 1.0)
            await run_batch(rollout, requests(20), rollout_data_dir=folder, concurrency=4)
            doomed.reached("the end")

    asyncio.run(play())


async def test_a_killed_batch_loses_those_in_flight_alone(tmp_path) -> None:
    with script(said("#### 1")) as model:
        at = killing.after("worker.rollout.dump:RolloutDump.write", hit=7)
        assert killing.run(plays, model.url, str(tmp_path), at=at).killed
        kept = {row["request_id"] for row in rows(tmp_path)}
        assert len(kept) == 7
        async with playing(model, score=lambda _: 1.0) as rollout:
            batch = await run_batch(rollout, requests(20), rollout_data_dir=tmp_path)
    assert (batch.resumed, len(batch.trajectories)) == (7, 13)
    assert kept.isdisjoint(t.request.request_id for t in batch.trajectories)
    assert len({row["request_id"] for row in rows(tmp_path)}) == len(rows(tmp_path)) == 20


async def test_so_many_are_in_flight_and_no_more() -> None:
    most, now = 0, 0

    class Counting(QueueTool):
        async def create(self, instance_id: str | None = None, **_: Any) -> Any:
            nonlocal most, now
            now += 1
            most = max(most, now)
            return await super().create(instance_id)

        async def release(self, instance_id: str, **_: Any) -> None:
            nonlocal now
            now -= 1

    with script(said("done")) as model:
        async with playing(model, Counting(None)) as rollout:
            batch = await run_batch(
                rollout, [rollout.request(user("x")) for _ in range(12)], concurrency=3
            )
    assert (len(batch.trajectories), most, now) == (12, 3, 0)


async def test_progress_is_shown_to_people_alone(tmp_path) -> None:
    def seen(terminal: bool) -> Console:
        return Console(file=io.StringIO(), force_terminal=terminal, width=100)

    def answer(request: dict[str, Any], _: int) -> Any:
        return refused(500, "x") if request["messages"][0]["content"] == "1" else said("x")

    for terminal in (True, False):
        console = seen(terminal)
        with scripted_model(answer) as model:
            async with playing(model, score=lambda _: 0.5) as rollout:
                await run_batch(rollout, requests(3), console=console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        assert ("3/3" in shown) is terminal
        assert ("score 0.500, 1 masked" in shown) is terminal
        assert terminal or not shown


async def test_showing_the_progress_looks_at_each_trajectory_once(monkeypatch) -> None:
    looks, masked = 0, Trajectory.masked.fget

    def counted(trajectory: Trajectory) -> bool:
        nonlocal looks
        looks += 1
        return bool(masked(trajectory))  # type: ignore[misc]

    monkeypatch.setattr(Trajectory, "masked", property(counted))
    with script(said("x")) as model:
        async with playing(model, score=lambda _: 1.0) as rollout:
            await run_batch(rollout, requests(30))
    assert looks == 30


async def test_two_requests_of_one_id_are_refused() -> None:
    with script(said("x")) as model:
        async with playing(model) as rollout:
            with pytest.raises(ValueError, match="the same request_id"):
                await run_batch(rollout, requests(1) + requests(1))
