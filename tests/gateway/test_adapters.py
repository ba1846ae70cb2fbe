"""Rows as trainers have them, with stand-ins of their types, and with their own where these are."""

import itertools
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import ground
from buffer import RolloutBuffer, TaskConfig
from gateway.adapters import miles, slime
from gateway.adapters.samples import normalized, samples_of
from gateway.adapters.steps import Steps
from gateway.adapters.verl import outputs_of
from gateway.calls import Call, Sent
from gateway.items import item_of, rows_in
from gateway.log import SessionLog
from gateway.packing import floats_of, ids_of, spread
from gateway.training_rows import Log, Rows, rows_of
from ground import RedisUnavailable
from ground.process import from_thread
from tests.gateway.agents import STEPS, Agent, How, MemoryLog, World
from tests.gateway.trainers import SOURCES, Sample, install
from tests.gateway.turns import one_turn
from tests.harness.servers import PrivateRedis

FACTS = {"uid": "u1", "instance_id": "i1", "session": "s1", "sampling": {}}


@pytest.fixture(params=["stand-in", "itself"])
def real(request: pytest.FixtureRequest) -> bool:
    return str(request.param) == "itself"


def put_in_place(monkeypatch: pytest.MonkeyPatch, trainer: str, real: bool) -> None:
    if real and not SOURCES[trainer]:
        pytest.skip(f"{trainer.upper()}_SOURCE names no folder with {trainer}")
    install(lambda name, made: monkeypatch.setitem(sys.modules, name, made), trainer, real=real)


async def random_item(seed: int) -> dict[str, Any]:
    chance, log = random.Random(seed), MemoryLog()
    agent = Agent(World(seed, log))
    for _ in range(8):
        await agent.step(
            chance.choice(STEPS),
            How(
                fate=chance.choice(["whole", "whole", "hung_up"]),
                cut=chance.choice([0, 0, 2]),
                bumps=chance.choice([0, 2]),
            ),
        )
    return item_of(FACTS, rows_of(log.log()), 0.5, {}, {"extra_info": {"label": "four"}})


@pytest.mark.parametrize("trainer", ["slime", "miles"])
@pytest.mark.parametrize("seed", range(5))
async def test_a_sample_of_slime_and_miles_is_its_row(
    monkeypatch: pytest.MonkeyPatch, trainer: str, real: bool, seed: int
) -> None:
    put_in_place(monkeypatch, trainer, real)
    sample = sys.modules[f"{trainer}.utils.types"].Sample
    item = await random_item(seed)
    made = samples_of(sample, item, group=3, rollout=7)
    rows = rows_in(item)
    assert len(made) == len(rows) > 0
    for one, (row, reward) in zip(made, rows, strict=True):
        assert type(one) is sample
        assert (one.group_index, one.rollout_id, one.reward) == (3, 7, reward)
        assert one.tokens == list(row.tokens)
        assert len(one.loss_mask) == len(one.rollout_log_probs) == one.response_length
        assert one.loss_mask == spread(row.mask)
        assert one.rollout_log_probs == list(row.logprobs)
        assert one.metadata["label"] == "four"
        assert all(each.isdecimal() for each in one.weight_versions)
        covered = sum(end - begin for begin, end, _ in one.metadata["version_spans"])
        assert covered == sum(n for n, version in row.versions if version != -1)
        if hasattr(one, "validate"):
            one.validate()


@pytest.mark.parametrize("seed", range(5))
async def test_an_output_of_verl_is_its_row(
    monkeypatch: pytest.MonkeyPatch, real: bool, seed: int
) -> None:
    put_in_place(monkeypatch, "verl", real)
    item = await random_item(seed)
    rows = rows_in(item)
    for one, (row, reward) in zip(outputs_of(item), rows, strict=True):
        assert one.prompt_ids + one.response_ids == list(row.tokens)
        assert len(one.response_mask) == len(one.response_logprobs) == len(one.response_ids)
        assert (one.response_mask, one.reward_score) == (spread(row.mask), reward)
        made = [version for _, version in row.versions if version != -1]
        assert one.extra_fields["min_global_steps"] == min(made)
    for one in outputs_of(item, prompt_length=3, response_length=5):
        assert len(one.prompt_ids) <= 3
        assert len(one.response_ids) <= 5
        assert one.response_mask == [0] * len(one.response_ids), "its context was cut"


def one_call(number: int) -> Call:
    return Call(
        number, delta=ids_of([1]), out=ids_of([2, 3]), lps=floats_of([-1, -1]), spans=((2, -2),),
        sent=Sent.WHOLE, req_digest=b"." * 16,
    )  # fmt: skip


def masked_item() -> dict[str, Any]:
    return item_of(FACTS, rows_of(Log({1: one_call(1)}, hole=True)), 1.0, {}, {})


def test_a_masked_session_is_removed_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, "verl", False)
    (one,) = samples_of(Sample, masked_item(), group=0, rollout=0)
    assert (one.remove_sample, one.loss_mask, one.metadata["cause"]) == (True, [0, 0], "hole")
    assert (one.status, one.weight_versions) == (Sample.Status.FAILED, ["unknown"])
    (output,) = outputs_of(masked_item())
    assert output.extra_fields["traj_masked"] is True
    assert output.response_mask == [0, 0]


def test_a_row_without_a_reward_is_masked_and_never_trained_as_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_in_place(monkeypatch, "verl", False)
    rows = rows_of(Log({1: one_call(1), 2: one_call(2)}))
    item = item_of(FACTS, rows, None, {2: 0.0}, {})
    unknown, known = samples_of(Sample, item, group=0, rollout=0)
    assert (unknown.remove_sample, unknown.loss_mask) == (True, [0, 0])
    assert unknown.metadata["cause"] == "no_reward"
    assert (known.remove_sample, known.loss_mask, known.reward) == (False, [1, 1], 0.0)
    (output,) = outputs_of(item_of(FACTS, rows_of(Log({1: one_call(1)})), None, {}, {}))
    assert (output.response_mask, output.extra_fields["cause"]) == ([0, 0], "no_reward")


def test_a_session_without_a_row_is_no_sample() -> None:
    assert samples_of(Sample, item_of(FACTS, Rows(()), None, {}, {}), group=0, rollout=0) == []


def test_a_trajectory_counts_once_in_its_mean_and_a_masked_one_never() -> None:
    def sample(rollout: int, reward: float, **more: Any) -> Sample:
        return Sample(group_index=0, rollout_id=rollout, reward=reward, **more)

    samples = [
        sample(0, 1.0), sample(0, 1.0), sample(0, 1.0), sample(1, 0.0),
        sample(2, 1.0, remove_sample=True),
    ]  # fmt: skip
    raw, made = normalized(samples, centred=True, by_deviation=False)
    assert raw == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert made == [0.5, 0.5, 0.5, -0.5, 0.0]


@pytest.mark.parametrize(
    ("estimator", "wanted", "made"),
    [
        ("grpo", True, [0.5, -0.5, 0.0]),
        ("reinforce_plus_plus_baseline", True, [0.5, -0.5, 0.0]),
        ("grpo", False, [1.0, 0.0, 0.0]),
        ("ppo", True, [1.0, 0.0, 0.0]),
        ("reinforce_plus_plus", True, [1.0, 0.0, 0.0]),
    ],
)
def test_rewards_are_centred_where_slime_centres_them(
    estimator: str, wanted: bool, made: list[float]
) -> None:
    args = SimpleNamespace(
        advantage_estimator=estimator, rewards_normalization=wanted, grpo_std_normalization=False
    )
    samples = [Sample(group_index=0, rollout_id=n, reward=1.0 - n) for n in range(2)]
    samples.append(Sample(group_index=0, rollout_id=2, reward=0.0, remove_sample=True))
    assert slime.rewards(args, samples) == ([1.0, 0.0, 0.0], made)


@pytest.fixture
async def two_groups(
    shared_server: PrivateRedis, real_redis: ground.Client, monkeypatch: Any
) -> Any:
    """Two prompts, each of two finalized sessions with two rows."""
    monkeypatch.setenv("PENSTOCK_REDIS_URL", shared_server.url)
    buffer = RolloutBuffer(shared_server.url, "gateway", TaskConfig(group_size=2, dialect="v1"))
    await buffer.config()
    log = SessionLog(shared_server.url, "default")
    for n in range(4):
        session = (await log.open("gateway", f"u{n}", f"i{n // 2}")).session
        await one_turn(log, session)
        await one_turn(log, session, 2)
        await log.finalize(session, n % 2)
    await log.aclose()
    await buffer.aclose()
    return SimpleNamespace(
        n_samples_per_prompt=2, rollout_batch_size=2, rollout_task_type=None,
        advantage_estimator="grpo", rewards_normalization=True, grpo_std_normalization=False,
    )  # fmt: skip


def flat(groups: Any) -> list[Any]:
    return [one for group in groups for rollout in group for one in rollout]


def test_slime_takes_a_step_of_groups(
    two_groups: Any, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    put_in_place(monkeypatch, "slime", real)
    monkeypatch.setattr(slime, "_steps", {})
    groups = slime.generate_rollout(two_groups, 0, None)
    assert [[len(rollout) for rollout in group] for group in groups] == [[2, 2], [2, 2]]
    samples = flat(groups)
    assert [one.rollout_id for one in samples] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [one.group_index for one in samples] == [0] * 4 + [2] * 4
    _, made = slime.rewards(two_groups, samples)
    assert made == [-0.5, -0.5, 0.5, 0.5] * 2
    with pytest.raises(ValueError, match="do not evaluate"):
        slime.generate_rollout(two_groups, 0, None, evaluation=True)
    from_thread(slime._steps["gateway"].buffer.aclose())


def fails_amid_a_step(monkeypatch: pytest.MonkeyPatch, buffer: RolloutBuffer) -> None:
    """Each take gets one group, and the second one fails."""
    take, calls = buffer.take, itertools.count()

    async def fails_then(groups: int, **more: Any) -> Any:
        if next(calls) == 1:
            raise RedisUnavailable("away")
        return await take(1, **more)

    monkeypatch.setattr(buffer, "take", fails_then)


def test_slime_gives_no_group_away_before_its_step_is_whole(
    two_groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, "slime", False)
    buffer = (steps := Steps(two_groups, Sample)).buffer
    monkeypatch.setattr(slime, "_steps", {"gateway": steps})
    fails_amid_a_step(monkeypatch, buffer)
    with pytest.raises(RedisUnavailable):
        slime.generate_rollout(two_groups, 0, None)
    assert len(from_thread(buffer.catalog.groups("leased"))) == 1
    again = slime.generate_rollout(two_groups, 0, None)
    assert len({one.group_index for one in flat(again)}) == 2
    from_thread(buffer.aclose())


async def test_miles_gives_no_group_away_before_its_step_is_whole(
    two_groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, "miles", False)
    rollouts = miles.Rollouts(SimpleNamespace(args=two_groups))
    buffer = rollouts._steps.buffer
    fails_amid_a_step(monkeypatch, buffer)
    step = SimpleNamespace(evaluation=False)
    with pytest.raises(RedisUnavailable):
        await rollouts(step)
    assert len(await buffer.catalog.groups("leased")) == 1
    assert len({one.group_index for one in flat((await rollouts(step)).samples)}) == 2
    await buffer.aclose()


async def test_miles_takes_a_step_of_groups(
    two_groups: Any, monkeypatch: pytest.MonkeyPatch, real: bool
) -> None:
    put_in_place(monkeypatch, "miles", real)
    rollouts = miles.Rollouts(SimpleNamespace(args=two_groups))
    output = await rollouts(SimpleNamespace(evaluation=False, weight_version=None))
    assert [one.rollout_id for one in flat(output.samples)] == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ValueError, match="do not evaluate"):
        await rollouts(SimpleNamespace(evaluation=True))
    await rollouts._steps.buffer.aclose()
