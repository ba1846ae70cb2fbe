"""Cases at the edge, of the log and of the rows, each by name."""

import asyncio
import json
import time
from array import array
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from buffer import ItemRefused, Outcome, Policy, SlotLost
from gateway.calls import Call, Sent, State
from gateway.canonical import Message, ToolCall, arguments_of, chain, root
from gateway.errors import (
    BudgetSpent,
    CallConflict,
    CallLost,
    KeyReused,
    RewardDiffers,
    SessionOver,
    SessionsFull,
    SessionUnknown,
)
from gateway.items import rows_in
from gateway.log import Budget, Fresh, Join, Replay, Session
from gateway.notes import Notes
from gateway.packing import floats_of, ids_of, runs, spread
from gateway.server.agents import fault_of
from gateway.server.control import show_session
from gateway.settings import GatewaySettings
from gateway.training_rows import Log, rows_of
from ground import RedisFull, RedisUnavailable
from tests.gateway.agents import Agent, How, MemoryLog, World, check
from tests.gateway.conftest import Bench
from tests.gateway.scripted.model import Template
from tests.gateway.turns import answer, asked, drains, one_turn

SYSTEM, USER = Message("system", "be brief"), Message("user", "list")


async def taken(bench: Bench) -> dict[str, Any]:
    batch = await bench.buffer.take(1)
    assert batch is not None
    await bench.buffer.ack(batch)
    return batch.items[0]


# What continues what


def hashes(*messages: Message, tools: Any = None) -> list[bytes]:
    return chain(root(tools, {}, "m"), messages)


def calling(*names: str, ids: str = "abc", arguments: str = "{}") -> Message:
    made = (ToolCall(n, arguments_of(arguments), i) for n, i in zip(names, ids, strict=False))
    return Message("assistant", "", tuple(made))


def test_arguments_with_other_order_blanks_and_escapes_are_the_same() -> None:
    one = calling("sh", arguments='{"a": 1, "b": "é"}')
    other = calling("sh", arguments='{"b":"\\u00e9","a":1}')
    assert hashes(USER, one) == hashes(USER, other)


def test_a_whole_number_is_the_same_with_a_point_and_without() -> None:
    """JavaScript reads 5.0 and writes 5."""
    written, echoed = '{"a":5.0,"b":[1e2,-0.0,0.5],"c":1e20}', '{"a":5,"b":[100,0,0.5],"c":1e20}'
    one = calling("sh", arguments=written)
    assert hashes(USER, one) == hashes(USER, calling("sh", arguments=echoed))
    assert hashes(USER, one) != hashes(USER, calling("sh", arguments=written.replace("5.0", "5.1")))


def test_ids_of_tools_are_no_part_of_a_conversation_and_results_stand_by_their_calls() -> None:
    a, b = Message("tool", "A", answers="a"), Message("tool", "B", answers="b")
    x, y = Message("tool", "A", answers="x"), Message("tool", "B", answers="y")
    said, rewritten = calling("f", "g"), calling("f", "g", ids="xyz")
    assert hashes(USER, said, a, b)[-1] == hashes(USER, rewritten, y, x)[-1]
    assert hashes(USER, said, a, b)[-1] != hashes(USER, said, replace(a, content="B"), b)[-1]


def test_an_answer_without_one_of_its_tool_calls_is_another_conversation() -> None:
    assert hashes(USER, calling("f", "g")) != hashes(USER, calling("f"))


def test_other_tools_are_another_conversation() -> None:
    assert hashes(USER) != hashes(USER, tools=[{"name": "sh"}])


def test_what_clients_change_from_turn_to_turn_is_left_out_if_it_is_listed() -> None:
    billed = Message("system", "x-anthropic-billing-header: cc=1; cch=abc\nbe brief")
    assert hashes(billed, USER) == hashes(SYSTEM, USER)
    dated = Message("system", "Today's date: 2026-11-27\nbe brief")
    assert hashes(dated, USER) != hashes(SYSTEM, USER)
    listed = ("billing", "date", "reminder")
    at = root(None, {}, "m")
    assert chain(at, [dated, USER], listed) == chain(at, [SYSTEM, USER], listed)
    reminded = Message("user", "<system-reminder>be good</system-reminder>\nlist")
    assert chain(at, [reminded], listed) == chain(at, [USER], listed)
    assert hashes(reminded) != hashes(USER)


# Rows


async def story(mode: str = "R", **template: Any) -> tuple[Agent, MemoryLog]:
    log = MemoryLog()
    return Agent(World(5, log, mode=mode, template=Template(**template))), log


async def test_an_edited_turn_forks_and_the_old_row_stays() -> None:
    agent, log = await story()
    await agent.ask(How())
    await agent.edit(How())
    rows = check(log.log(), agent.world.seen)
    assert (len(rows.rows), rows.counts["foreign"], log.calls[2].foreign) == (2, 1, 1)


@pytest.mark.parametrize(
    ("mode", "strips", "rows"), [("R", True, 1), ("E", True, 2), ("E", False, 2)]
)
async def test_an_echo_without_reasoning_continues_as_far_as_the_ids_do(
    mode: str, strips: bool, rows: int
) -> None:
    """By ids that are kept it does. Rendered whole it does not: the thinking is not there."""

    def thinks(prompt: Any, chance: Any) -> str:
        return "<think>\nhm.\n</think>\n\nfiles"

    agent, log = await story(mode, strips=strips)
    agent.world.model._script = thinks
    await agent.ask(How())
    if mode == "R":
        await agent.echo(How())
    else:
        await agent.ask(How())
    assert len(check(log.log(), agent.world.seen).rows) == rows


async def test_two_parallel_calls_of_one_parent_are_two_rows_that_train_the_shared_part_once() -> (
    None
):
    agent, log = await story()
    await agent.ask(How())
    await agent.twice(How())
    rows = check(log.log(), agent.world.seen).rows
    assert [[call for call, *_ in row.calls] for row in rows] == [[1, 2], [1, 3]]
    assert [sum(spread(row.mask)) for row in rows] == [
        len(log.calls[1].out) + len(log.calls[2].out), len(log.calls[3].out)
    ]  # fmt: skip


async def test_a_chain_of_64_compactions_is_65_rows() -> None:
    agent, log = await story()
    await agent.ask(How())
    for _ in range(64):
        await agent.compact(How())
    assert len(check(log.log(), agent.world.seen).rows) == 65


async def test_sub_agents_eight_deep_are_a_row_each() -> None:
    agent, log = await story()
    world = agent.world
    threads: list[list[dict[str, Any]]] = []
    for depth in range(8):
        threads.append([{"role": "user", "content": f"task {depth}"}])
        for chat in threads:  # each level goes on while the one below works
            said = await world.turn(chat)
            assert said is not None
            chat += [said, *agent._results(said)]
    rows = check(log.log(), world.seen).rows
    assert sorted(len(row.calls) for row in rows) == list(range(1, 9))


def done(number: int, parent: int | None = None, keep: int = 0, **more: Any) -> Call:
    fields: dict[str, Any] = {
        "delta": ids_of([1, 2]), "out": ids_of([3, 4]), "lps": floats_of([-1.0, -2.0]),
        "spans": ((2, 7),), "sent": Sent.WHOLE, "req_digest": number.to_bytes(16),
    }  # fmt: skip
    return Call(number, parent, keep, **(fields | more))


def built(*calls: Call, **more: Any) -> Any:
    return rows_of(Log({call.id: call for call in calls}, **more))


def test_two_engines_with_versions_8_then_7_keep_their_spans() -> None:
    (row,) = built(done(1, spans=((2, 8),)), done(2, 1, 4, spans=((1, 8), (1, 7)))).rows
    assert row.versions == ((2, 8), (2, -1), (1, 8), (1, 7))


def test_a_constrained_call_is_trained_on_and_says_so_in_the_log() -> None:
    assert built(done(1, constrained=True)).counts["trained"] == 2


@pytest.mark.parametrize("lps", [[None, -1.0], [float("inf"), -1.0], [-9999.0, -1.0]])
def test_a_token_without_a_log_probability_is_masked_and_counted(lps: list[Any]) -> None:
    rows = built(done(1, lps=floats_of(lps)))
    assert spread(rows.rows[0].mask) == [0, 1]
    assert rows.rows[0].logprobs == array("f", [0.0, -1.0])
    assert rows.counts["masked_logprobs"] == 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"lps": floats_of([-1.0])}, "logprobs"),
        ({"spans": ((1, 7),)}, "versions"),
        ({"spans": ()}, "versions"),
        ({"lacks": "logprobs"}, "logprobs"),
        ({"lacks": "conflict"}, "conflict"),
        ({"train": False}, "side"),
        ({"sent": Sent.HUNG_UP}, "hung_up"),
    ],
)
def test_a_call_that_cannot_be_trained_on_is_masked_and_others_are_not(
    fault: Any, cause: str
) -> None:
    rows = built(done(1), done(2, 1, 4, **fault))
    assert spread(rows.rows[0].mask) == [1, 1, 0, 0, 0, 0]
    assert rows.counts[f"masked_{cause}"] == 2
    assert built(done(1, **fault)).rows == ()


def test_what_an_engine_gave_no_ids_of_is_in_no_row() -> None:
    rows = built(done(1), done(2, lacks="prompt_ids"), done(3, 1, 4))
    assert [[call for call, *_ in row.calls] for row in rows.rows] == [[1, 3]]
    assert rows.counts["masked_prompt_ids"] == 2


def test_a_hung_up_answer_that_was_used_later_is_trained_on() -> None:
    assert built(done(1, sent=Sent.HUNG_UP), done(2, 1, 4)).counts["trained"] == 4


def lost(number: int, parent: int | None = None) -> Call:
    return Call(number, parent, state=State.BROKEN, sent=Sent.UNKNOWN, req_digest=b"?" * 16)


def test_a_lost_turn_masks_its_session_unless_a_retry_was_answered() -> None:
    rows = built(done(1), lost(2, 1), done(3))
    assert (rows.masked, rows.cause, len(rows.rows)) == (True, "hole", 2)
    assert all(row.masked and not any(spread(row.mask)) for row in rows.rows)
    assert not built(done(1), lost(2, 1), done(3, req_digest=b"?" * 16)).masked


def test_a_lost_turn_can_mask_only_the_lineages_that_it_may_be_part_of() -> None:
    log = Log({call.id: call for call in (done(1), lost(2, 1), done(3, 1, 4), done(4))})
    rows = rows_of(log, "lineage")
    assert [row.masked for row in rows.rows] == [True, False]
    assert not rows.masked
    everywhere = Log({call.id: call for call in (done(1), lost(2))})
    assert rows_of(everywhere, "lineage").masked


async def test_a_session_is_shown_as_it_would_be_put() -> None:
    log = Log({call.id: call for call in (done(1), lost(2, 1), done(3, 1, 4), done(4))})

    async def read(_: Session) -> Log:
        return log

    sessions = SimpleNamespace(settings=GatewaySettings(gateway_on_hole="lineage"), read=read)
    state = SimpleNamespace(sessions=sessions, run="default")
    request: Any = SimpleNamespace(app=SimpleNamespace(state=state))
    shown = await show_session("math", "s", request)
    assert [row["masked"] for row in shown["rows"]] == [True, False]


def test_of_an_answer_and_its_retry_the_one_that_was_delivered_is_trained_on() -> None:
    body = b"=" * 16
    rows = built(done(1, req_digest=body), done(2, req_digest=body, retry=1))
    assert [row.calls[0][0] for row in rows.rows] == [2]
    between = Call(2, state=State.BROKEN, req_digest=body, retry=1)
    rows = built(done(1, req_digest=body), between, done(3, req_digest=body, retry=2))
    assert [row.calls[0][0] for row in rows.rows] == [3]
    other = built(done(1, req_digest=body), replace(between, retry=0), done(3, retry=2))
    assert [row.calls[0][0] for row in other.rows] == [1, 3], "a retry of another request"
    twice = built(done(1, req_digest=body), done(2, req_digest=body))
    assert len(twice.rows) == 2


# The log


async def test_a_retry_of_an_answered_request_gets_the_same_bytes(bench: Bench) -> None:
    session = await bench.open()
    call = await one_turn(bench.log, session)
    again = await bench.log.begin(session, asked(1, retry=True))
    assert isinstance(again, Replay)
    assert (again.call.id, again.answer) == (call.id, b"said")


async def test_an_equal_body_without_a_sign_of_a_retry_is_a_new_sample(bench: Bench) -> None:
    session = await bench.open()
    await one_turn(bench.log, session)
    second = await bench.log.begin(session, asked(1))
    assert isinstance(second, Fresh)
    assert (second.call, second.retry) == (2, 0)


async def test_a_retry_of_a_request_under_way_joins_it(bench: Bench) -> None:
    session, other = await bench.open(), bench.another()
    begun = await bench.log.begin(session, asked(1))
    joined = await other.begin(session, asked(1, retry=True))
    assert isinstance(joined, Join)
    assert isinstance(begun, Fresh)
    waiting = asyncio.create_task(other.joined(session, joined.call, 100))
    await bench.log.commit(session, begun.fence, answer(begun), b"", b"said")
    await waiting
    again = await other.begin(session, asked(1, retry=True, waited=True))
    assert isinstance(again, Replay)


async def test_a_retry_takes_over_from_a_process_that_is_gone(bench: Bench) -> None:
    session = await bench.open()
    gone = await bench.log.begin(session, asked(1))
    bench.redis.zadd(f"{session.key()}:open", {"1": 1})
    taken_over = await bench.another().begin(session, asked(1, retry=True))
    assert isinstance(gone, Fresh)
    assert isinstance(taken_over, Fresh)
    assert (taken_over.call, taken_over.retry) == (2, 1)
    log = await bench.log.read(session)
    assert (log.calls[1].state, log.calls[1].sent) == (State.BROKEN, Sent.NOTHING)


async def test_an_idempotency_key_with_another_body_is_refused(bench: Bench) -> None:
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1, key="k"))
    assert isinstance(begun, Fresh)
    await bench.log.commit(session, begun.fence, answer(begun), b"")
    assert isinstance(await bench.log.begin(session, asked(1, key="k")), Replay)
    with pytest.raises(KeyReused):
        await bench.log.begin(session, asked(2, key="k"))


async def test_two_processes_with_eight_calls_at_once_commit_them_all(bench: Bench) -> None:
    session = await bench.open()
    logs = [bench.log, bench.another()]
    await asyncio.gather(*(one_turn(logs[n % 2], session, n) for n in range(1, 9)))
    log = await bench.log.freeze(session)
    assert sorted(log.calls) == list(range(1, 9))
    assert {call.state for call in log.calls.values()} == {State.DONE}


async def test_a_commit_after_the_freeze_is_refused_and_changes_nothing(bench: Bench) -> None:
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    before = await bench.another().freeze(session, drain=0)
    with pytest.raises(SessionOver):
        await bench.log.commit(session, begun.fence, answer(begun), b"")
    assert await bench.log.read(session) == before
    assert before.cut == "open"
    with pytest.raises(SessionOver):
        await bench.log.begin(session, asked(2))


async def test_finalizing_waits_for_the_calls_under_way(bench: Bench) -> None:
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    ending = asyncio.create_task(bench.another().finalize(session, 1.0, drain=100))
    await drains(bench)
    await bench.log.commit(session, begun.fence, answer(begun), b"")
    ended = await ending
    assert (ended.rows, ended.masked) == (1, False)


async def test_a_retry_is_answered_while_finalizing_waits_for_another_call(bench: Bench) -> None:
    session, other = await bench.open(), bench.another()
    await one_turn(bench.log, session, 1)
    begun = await bench.log.begin(session, asked(2))
    assert isinstance(begun, Fresh)
    ending = asyncio.create_task(other.finalize(session, 1.0, drain=100))
    await drains(bench)
    again = await bench.log.begin(session, asked(1, retry=True))
    assert isinstance(again, Replay)
    assert again.answer == b"said"
    joined = await bench.log.begin(session, asked(2, retry=True))
    assert isinstance(joined, Join)
    with pytest.raises(SessionOver):
        await bench.log.begin(session, asked(3))
    await bench.log.commit(session, begun.fence, answer(begun), b"")
    assert not (await ending).masked
    with pytest.raises(SessionOver):
        await bench.log.begin(session, asked(1, retry=True))


async def test_finalizing_waits_for_the_second_sample_of_a_body(bench: Bench) -> None:
    session, other = await bench.open(), bench.another()
    first = await bench.log.begin(session, asked(1))
    assert isinstance(first, Fresh)
    await one_turn(other, session, 1)
    await other._notes.flush()
    ending = asyncio.create_task(other.finalize(session, 1.0, drain=100))
    await drains(bench)
    await bench.log.commit(session, first.fence, answer(first), b"")
    ended = await ending
    assert (ended.masked, ended.counts["trained"], ended.rows) == (False, 6, 2)


async def test_finalizing_waits_for_a_call_whose_process_is_gone_until_its_lease_ends(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, other, waits = await bench.open(), bench.another(), []
    await bench.log.begin(session, asked(1))

    async def lease_ends(_: Session, __: str, wait: float) -> None:
        waits.append(wait)
        bench.redis.zadd(f"{session.key()}:open", {"1": 1})

    monkeypatch.setattr(other, "_rung", lease_ends)
    ended = await other.finalize(session, 0.0, drain=1000)
    assert (ended.masked, ended.counts["broken"]) == (False, 1)
    lease = other.settings.gateway_call_lease
    assert [wait <= lease for wait in waits] == [True]
    assert lease < other.settings.gateway_drain


async def test_two_processes_finalize_with_one_reward_and_a_third_with_another(
    bench: Bench,
) -> None:
    session = await bench.open()
    await one_turn(bench.log, session)
    first, second = await asyncio.gather(
        bench.log.finalize(session, 1.0), bench.another().finalize(session, 1.0)
    )
    assert first == second
    assert first.outcome is Outcome.STORED
    with pytest.raises(RewardDiffers):
        await bench.log.finalize(session, 0.0)
    with pytest.raises(SessionOver):
        await bench.log.begin(session, asked(2))
    item = await taken(bench)
    assert (item["uid"], item["reward"], len(item["rows"])) == ("u1", 1.0, 1)
    left = {key.decode().removeprefix(session.key()) for key in bench.redis.keys("*:session:*")}
    assert left == {"", ":answer:1"}


async def test_of_two_equal_conversations_the_one_that_was_continued_is_continued(
    bench: Bench,
) -> None:
    session, same = await bench.open(), b"s" * 16
    for body in (1, 2):
        begun = await bench.log.begin(session, asked(body))
        assert isinstance(begun, Fresh)
        await bench.log.commit(session, begun.fence, answer(begun), same)
    newest = await bench.log.begin(session, asked(3, same))
    assert isinstance(newest, Fresh)
    assert newest.hits == (2,)
    await bench.log.commit(session, newest.fence, answer(newest, 2, 5), b"t" * 16)
    third = await bench.log.begin(session, asked(4))
    assert isinstance(third, Fresh)
    await bench.log.commit(session, third.fence, answer(third), same)
    after = await bench.log.begin(session, asked(5, b"?" * 16, same))
    assert isinstance(after, Fresh)
    assert (after.hits, after.foreign) == ((None, 2), 1)


async def test_ids_are_the_same_from_memory_and_from_redis(bench: Bench) -> None:
    session = await bench.open()
    await one_turn(bench.log, session)
    await one_turn(bench.log, session, 2, parent=1, keep=5)
    await one_turn(bench.log, session, 3, parent=2, keep=3)
    for call in (1, 2, 3):
        held = await bench.log.ids(session, call)
        assert held == await bench.another().ids(session, call)
    assert list(held) == [1, 1, 10, 1, 3, 10, 11, 12]


async def test_ids_of_an_earlier_session_with_the_same_uid_are_no_prompt(bench: Bench) -> None:
    session, other = await bench.open(), bench.another()
    await one_turn(bench.log, session, out=ids_of([66, 66, 66]))
    await bench.log.finalize(session, 1.0)
    bench.redis.delete(session.key())  # the time is over for which it answers a repeat
    assert (await other.open("math", "u1", "i1")).session == session
    await one_turn(other, session)
    begun = await bench.log.begin(session, asked(2, (1).to_bytes(16)))
    assert isinstance(begun, Fresh)
    assert begun.hits == (1,)
    assert await bench.log.ids(session, 1) == await other.ids(session, 1)


async def test_a_lost_reply_to_a_begin_or_a_commit_changes_nothing(
    bench: Bench, monkeypatch: Any
) -> None:
    """Each script is sent twice, as if its first reply had been lost."""
    session = await bench.open()
    run = bench.log._link.run

    async def twice(*call: Any) -> Any:
        await run(*call)
        return await run(*call)

    monkeypatch.setattr(bench.log._link, "run", twice)
    call = await one_turn(bench.log, session)
    await bench.log._notes.flush()
    log = await bench.log.read(session)
    assert (call.id, len(log.calls), log.calls[1].sent) == (1, 1, Sent.WHOLE)
    assert (await bench.log.finalize(session, 1.0)).rows == 1


async def test_another_answer_for_one_call_is_a_conflict_and_neither_is_trained_on(
    bench: Bench,
) -> None:
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    await bench.log.commit(session, begun.fence, answer(begun), b"")
    with pytest.raises(CallConflict):
        await bench.log.commit(session, begun.fence, answer(begun, finish="length"), b"")
    assert rows_of(await bench.log.freeze(session)).counts["masked_conflict"] == 3


async def test_a_call_whose_beginning_redis_lost_is_not_committed(bench: Bench) -> None:
    session = await bench.open()
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    bench.redis.hdel(session.calls_key(), "1")
    with pytest.raises(CallLost):
        await bench.log.commit(session, begun.fence, answer(begun), b"")


@pytest.mark.parametrize(
    ("budget", "what"),
    [(Budget(tokens=3), "tokens"), (Budget(turns=1), "turns"), (Budget(seconds=0.001), "seconds")],
)
async def test_a_budget_ends_a_session_with_its_name(
    bench: Bench, budget: Budget, what: str
) -> None:
    session = await bench.open(budget=budget)
    if what != "seconds":
        await one_turn(bench.log, session)
    with pytest.raises(BudgetSpent, match=what):
        while True:
            await bench.log.begin(session, asked(2))


async def test_a_turn_without_an_answer_is_none_of_its_budget(bench: Bench) -> None:
    session = await bench.open(budget=Budget(turns=1))
    failed = await bench.log.begin(session, asked(1))
    assert isinstance(failed, Fresh)
    bench.log.broke(session, failed.call, failed.fence)
    await bench.log._notes.flush()
    await one_turn(bench.log, session, 2)
    with pytest.raises(BudgetSpent, match="turns"):
        await bench.log.begin(session, asked(3))
    late = await bench.open("u2", budget=Budget(turns=1))
    begun = await bench.log.begin(late, asked(1))
    assert isinstance(begun, Fresh)
    bench.redis.zadd(f"{late.key()}:open", {"1": 1})
    bench.redis.zadd(f"{late.root}:sessions", {late.sid: 1})
    await bench.another().sweep("math")  # it counts as gone, and comes back
    await bench.log.commit(late, begun.fence, answer(begun), b"")
    with pytest.raises(BudgetSpent, match="turns"):
        await bench.log.begin(late, asked(2))


async def test_too_many_sessions_are_refused_and_old_ones_go_on(redis: Any) -> None:
    bench = Bench(redis)
    await bench.start()
    bench.log.settings = GatewaySettings(gateway_most_sessions=1)
    session = await bench.open("u1")
    with pytest.raises(SessionsFull):
        await bench.open("u2")
    assert len(bench.redis.keys("penstock:gateway:key:*")) == 1
    assert await bench.open("u1") == session
    await one_turn(bench.log, session)
    await bench.aclose()


async def test_a_key_finds_its_session_from_any_process(bench: Bench) -> None:
    opened = await bench.log.open("math", "u1", "i1", sampling={"temperature": 1})
    assert await bench.another().find(opened.key) == opened.session
    with pytest.raises(SessionUnknown):
        await bench.log.find("sk-guess")


async def test_a_first_turn_that_redis_lost_is_a_hole(bench: Bench) -> None:
    session = await bench.open()
    before = {key: bench.redis.dump(key) for key in bench.redis.keys("*")}
    await one_turn(bench.log, session)
    bench.redis.flushdb()  # its machine dies, and what was written in the last second is gone
    for key, value in before.items():
        bench.redis.restore(key, 0, value)
    bench.redis.hset(session.key(), "epoch", "the life before")
    goes_on = await bench.another().begin(session, asked(2, (1).to_bytes(16)))
    assert isinstance(goes_on, Fresh)
    assert (await bench.log.read(session)).hole


async def test_a_full_redis_ends_no_renewing_of_leases() -> None:
    renewed = asyncio.Event()

    class FullOnce:
        full = True

        async def run(self, *_: Any) -> None:
            if self.full:
                self.full = False
                raise RedisFull("maxmemory: it is out of memory")
            renewed.set()

    link: Any = FullOnce()
    notes = Notes(link, 30)
    notes.keep("root", "sid", 1, "f")
    assert notes._runner is not None
    waits = asyncio.create_task(renewed.wait())
    await asyncio.wait([waits, notes._runner], return_when=asyncio.FIRST_COMPLETED)
    assert renewed.is_set()
    await notes.aclose()
    assert fault_of(RedisFull("maxmemory: it is out of memory")).status == 503


class Hurried(asyncio.SelectorEventLoop):
    """A loop whose clock moves only when all wait, and then to where the first of them goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()
        selector: Any = self._selector  # type: ignore[attr-defined]
        self._ready_now = selector.select
        selector.select = self._skip

    def time(self) -> float:
        return self.now

    def _skip(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return self._ready_now(0)


def test_the_lease_of_a_call_is_renewed_three_times_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renewed: list[float] = []

    class Noting:
        async def run(self, *_: Any) -> None:
            renewed.append(asyncio.get_running_loop().time())

    async def hold_a_call() -> None:
        clock = SimpleNamespace(monotonic=asyncio.get_running_loop().time)
        monkeypatch.setattr("gateway.notes.time", clock)
        link: Any = Noting()
        notes = Notes(link, 30_000)
        notes.keep("root", "sid", 1, "f")
        await asyncio.sleep(35)  # of a clock that is hurried
        await notes.aclose()

    with asyncio.Runner(loop_factory=Hurried) as runner:
        runner.run(hold_a_call())
    assert renewed == pytest.approx([10, 20, 30])


async def test_a_second_opener_samples_as_the_first_one_said(bench: Bench) -> None:
    first = await bench.open(sampling={"temperature": 1.0})
    second = await bench.another().open("math", "u1", "i1", sampling={"temperature": 0.2})
    assert (await bench.log.find(second.key)).sampling == first.sampling
    assert second.session.sampling == first.sampling


async def test_a_key_in_use_lives_as_long_as_its_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = await bench.log.open("math", "u1", "i1")
    await bench.log.find(opened.key)
    (name,) = bench.redis.keys("penstock:gateway:key:*")
    bench.redis.expire(name, 1000)
    later = time.monotonic() + 1 + bench.log.settings.gateway_session_idle
    monkeypatch.setattr("gateway.log.time", SimpleNamespace(monotonic=lambda: later))
    assert await bench.log.find(opened.key) == opened.session
    assert bench.redis.ttl(name) > 1000


async def test_a_session_lives_as_long_as_its_longest_call(bench: Bench) -> None:
    session = await bench.open()
    await bench.log.begin(session, asked(1))
    bench.redis.expire(session.key(), 1000)
    bench.redis.zadd(f"{session.root}:sessions", {session.sid: 1})
    await bench.another().sweep("math")
    parts = ("", ":calls", ":index", ":states", ":open")
    assert min(bench.redis.ttl(session.key() + part) for part in parts) > 1000


async def test_an_expired_session_takes_no_room(bench: Bench) -> None:
    expired, lives = await bench.open(), await bench.open("u2", "i2")
    for session in (expired, lives):
        await one_turn(bench.log, session)
    size = int(bench.redis.hget(lives.key(), "bytes"))
    bench.redis.delete(expired.key())
    bench.redis.zadd(f"{expired.root}:sessions", {expired.sid: 1})
    await bench.another().sweep("math")
    assert int(bench.redis.hget(f"{lives.root}:state", "session_bytes")) == size
    assert not bench.redis.exists(expired.calls_key())


async def test_an_answer_that_one_client_has_whole_is_noted_so_over_an_outage() -> None:
    notes: Notes

    class Away:
        async def run(self, *_: Any) -> None:
            notes.note("root", "sid", 1, "", "3")  # another client hangs up meanwhile
            raise RedisUnavailable("away")

    link: Any = Away()
    notes = Notes(link, 30_000)
    notes.note("root", "sid", 1, "", "2")
    with pytest.raises(RedisUnavailable):
        await notes.flush()
    assert notes._due == {("root", "sid", 1): ("", "2")}
    await notes.aclose()


async def test_an_idle_session_is_put_as_lost(bench: Bench) -> None:
    session, busy = await bench.open("u1"), await bench.open("u2", "i2")
    await one_turn(bench.log, session)
    await one_turn(bench.log, busy)
    await bench.log._notes.flush()
    long_ago = 1
    bench.redis.hset(session.key(), "t", long_ago)
    for each in (session, busy):
        bench.redis.zadd(f"{session.root}:sessions", {each.sid: long_ago})
    assert await bench.another().sweep("math") == 1
    item = await taken(bench)
    assert (item["uid"], item["cause"], "reward" in item) == ("u1", "idle", False)
    assert [row[0].masked for row in rows_in(item)] == [True]
    assert await one_turn(bench.log, busy, 2)


async def test_a_sweep_takes_no_session_from_the_trainer_that_finalizes_it(bench: Bench) -> None:
    session, other = await bench.open(), bench.another()
    await one_turn(bench.log, session)
    await bench.log._notes.flush()
    bench.redis.hset(session.key(), "t", 1)
    bench.redis.zadd(f"{session.root}:sessions", {session.sid: 1})
    run = other._link.run

    async def trainer_is_first(script: Any, *more: Any) -> Any:
        said = await run(script, *more)
        if said == [session.sid.encode()]:  # it was named as idle
            await bench.log.freeze(session)
        return said

    other._link.run = trainer_is_first  # type: ignore[method-assign]
    assert await other.sweep("math") == 1
    await bench.log.finalize(session, 1.0)
    assert (await taken(bench))["reward"] == 1.0


async def test_an_idle_session_is_tried_again_when_the_buffer_has_room(redis: Any) -> None:
    bench = Bench(redis, max_buffer_size=1)
    await bench.start()
    for uid in ("u1", "u2"):
        session = await bench.open(uid, uid)
        await one_turn(bench.log, session)
        if uid == "u1":
            await bench.log.finalize(session, 1.0)
    await bench.log._notes.flush()
    bench.redis.hset(session.key(), "t", 1)
    for full in (True, False):
        bench.redis.zadd(f"{session.root}:sessions", {session.sid: 1})
        assert await bench.another().sweep("math") == 1
        if full:
            await taken(bench)
    assert (await taken(bench))["uid"] == "u2"
    await bench.aclose()


async def test_an_idle_session_that_cannot_be_put_holds_up_no_other(bench: Bench) -> None:
    await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=1))
    await bench.buffer.publish(7)
    for place, uid in enumerate(("unpublished", "u2"), 1):
        session = await bench.open(uid, uid)
        await one_turn(bench.log, session, spans=((3, 9 - place),))
        await bench.log._notes.flush()
        bench.redis.hset(session.key(), "t", 1)
        bench.redis.zadd(f"{session.root}:sessions", {session.sid: place})
    await bench.another().sweep("math")
    assert (await taken(bench))["uid"] == "u2"


async def test_a_session_under_a_slot_ends_its_group(bench: Bench) -> None:
    await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=1))
    await bench.buffer.publish(7)
    (slot,) = await bench.buffer.admit(1, instances=["i1"])
    session = await bench.open(slot=(slot.id, slot.fence))
    begun = await bench.log.begin(session, asked(1))
    assert isinstance(begun, Fresh)
    assert begun.version == 7
    await bench.log.commit(session, begun.fence, answer(begun, spans=((3, 8),)), b"")
    with pytest.raises(ItemRefused, match="no trainer has published"):
        await bench.log.finalize(session, 1.0)
    await bench.buffer.publish(8)
    assert (await bench.log.finalize(session, 1.0)).outcome is Outcome.STORED
    assert await bench.buffer.available() == 1


async def test_a_session_whose_slot_is_over_is_lost(bench: Bench) -> None:
    await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=1))
    await bench.buffer.publish(7)
    (slot,) = await bench.buffer.admit(1, instances=["i1"])
    session = await bench.open(slot=(slot.id, slot.fence))
    await one_turn(bench.log, session)
    await slot.end(back=True)
    await bench.buffer.admit(1)
    for _ in range(2):
        with pytest.raises(SlotLost):
            await bench.log.finalize(session, 1.0)


async def test_rows_come_back_from_an_item_as_they_were(bench: Bench) -> None:
    session = await bench.open()
    await one_turn(bench.log, session, spans=((1, 7), (2, 8)), lps=floats_of([-1, None, -0.5]))
    rows = rows_of(await bench.log.freeze(session)).rows
    await bench.log.finalize(session, 0.5, rewards={1: 2.0})
    assert rows_in(json.loads(json.dumps(await taken(bench)))) == [(rows[0], 2.0)]
    assert rows[0].mask == runs([1, 0, 1])


@pytest.mark.parametrize("name", ["masked", "reward", "rows"])
async def test_extra_has_no_key_of_the_gateways_own(bench: Bench, name: str) -> None:
    session = await bench.open()
    await one_turn(bench.log, session)
    with pytest.raises(ItemRefused, match=name):
        await bench.log.finalize(session, None, extra={name: True})
    await bench.log.finalize(session, 1.0, extra={"label": True})
    item = await taken(bench)
    assert (item["label"], [reward for _, reward in rows_in(item)]) == (True, [1.0])


async def test_a_masked_task_masks_old_spans_of_each_row(bench: Bench) -> None:
    await bench.buffer.set_policy(Policy(groups_per_version=4, max_age=0, when_old="mask"))
    await bench.buffer.publish(8)
    session = await bench.open()
    await one_turn(bench.log, session, spans=((1, 8), (1, -2), (1, 7)))
    await one_turn(bench.log, session, 2, spans=((3, 8),))
    await bench.log.finalize(session, 1.0)
    masks = [spread(row.mask) for row, _ in rows_in(await taken(bench))]
    assert masks == [[1, 0, 0], [1, 1, 1]]


# What is too large for an item


async def test_an_extra_that_is_too_large_is_refused_and_the_session_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MAX_ITEM_BYTES", "4096")
    log, session = bench.another(), await bench.open()
    await one_turn(log, session)
    with pytest.raises(ItemRefused, match=r"^extra: .*without `extra` it would fit") as refusal:
        await log.finalize(session, 1.0, extra={"notes": "x" * 4096})
    assert refusal.value.too_large
    ended = await log.finalize(session, 1.0, extra={"notes": "short"})
    assert (ended.rows, ended.masked) == (1, False)
    assert (await taken(bench))["notes"] == "short"


async def test_rows_that_are_too_large_are_masked_whatever_extra_has(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_MAX_ITEM_BYTES", "300")
    log, session = bench.another(), await bench.open()
    await one_turn(log, session)
    ended = await log.finalize(session, 1.0, extra={"notes": "x" * 300})
    assert (ended.rows, ended.masked, ended.cause) == (0, True, "too_large")


@pytest.mark.parametrize("number", [-1, 2**53, 1.5, True, "1"])
async def test_no_session_is_opened_in_a_round_that_no_item_could_have(
    bench: Bench, number: Any
) -> None:
    with pytest.raises(ItemRefused, match="round_number"):
        await bench.open(round_number=number)
    assert await bench.log.listed("math") == []


async def test_a_session_of_a_round_is_the_same_from_python_and_from_json(bench: Bench) -> None:
    assert await bench.open(round_number=3) == await bench.open(round_number=3.0)
