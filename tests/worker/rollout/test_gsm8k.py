"""GSM8K's answers, and the tool that tells a model how good its own is."""

import pytest

from tests.harness.scripted_model import called, said
from tests.worker.rollout.players import playing, script, user
from worker.rollout import Gsm8kTool, gsm8k_score
from worker.rollout.gsm8k import same_answer


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        ("220000.0", "220000", True),
        ("220000", "220000.0", True),
        ("220000.00", "220,000", True),
        ("$220,000", "220000", True),
        ("220000 dollars", "220000", True),
        ("2.2e5", "220000", True),
        ("-7", "-7.0", True),
        (".5", "0.50", True),
        ("220000.", "220000", True),
        ("220000.01", "220000", False),
        ("22000", "220000", False),
        ("7", "-7", False),
        ("0.1", "0.10000000000000000001", False),  # as exact numbers, not as floats
        ("x", "220000", False),
        ("", "0", False),
        ("1/2", "1", False),
        ("1/2", "1/2", True),
        ("1 1/2", "1", False),
        ("1 1/2", "1 1/2", True),
        ("1 / 2", "1", False),
        ("1e1000", "1", False),
        ("1.5e+2000 m", "1.5", False),
        ("12 eggs 1/2 eaten", "12", True),
        ("12:30", "12", False),
        ("3-4", "3", False),
        ("1.5.2", "1.5", False),
        ("12.5/3", "12.5", False),
        ("Paris", "Paris", True),
        ("Paris", "Rome", False),
        ("9" * 400, "9" * 399 + "8", False),
        ("1e999", "1e999", True),
    ],
)
def test_numbers_are_compared_as_numbers(answer: str, truth: str, same: bool) -> None:
    assert same_answer(answer, truth) is same
    assert gsm8k_score(f"so\n#### {answer}", f"because\n#### {truth}") == float(same)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("#### 1\nno:\n#### 18", 1.0),
        ("#### 18\nno:\n#### 1", 0.0),
        ("####18\nIt is.", 1.0),
        ("18", 0.0),
        ("####", 0.0),
        ("#### \n", 0.0),
    ],
)
def test_the_last_answer_counts_and_only_one_that_is_marked(text: str, score: float) -> None:
    assert gsm8k_score(text, "18") == score


def test_an_answer_that_runs_away_in_digits_takes_no_time() -> None:
    """Hours, where every way to split them is tried."""
    assert gsm8k_score(f"#### {'1' * 300_000}/2", "#### 3") == 0.0
    assert gsm8k_score(f"#### {'1' * 300_000}", "#### 3") == 0.0
    assert gsm8k_score(f"#### 1{' ' * 300_000}x", "#### 3") == 0.0
    assert gsm8k_score(f"#### 1 {'1' * 300_000}x", "#### 3") == 0.0


def test_the_answer_that_the_seed_shows_is_right() -> None:
    """verl's own comparison of texts gives it a score of 0."""
    assert gsm8k_score(
        "aligns with the question's parameters.\n</think>\n\n#### 220000.0", "220000"
    )


async def test_a_model_improves_on_its_answer() -> None:
    def submit(answer: str):
        return called(("calc_gsm8k_reward", f'{{"answer": {answer}}}'))

    tool = Gsm8kTool()
    with script(submit('"17"'), submit('"#### 18"'), submit("18"), said("#### 18")) as model:
        async with playing(model, tool) as rollout:
            truth = {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": "18"}}}
            trajectory = await rollout.run(rollout.request(user("?"), tools_kwargs=truth))
    assert trajectory.reward_scores == {"calc_gsm8k_reward": 1.0}
    assert trajectory.tool_rewards == [-0.05, 0.0, -0.05]
    told = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert told == [
        "Current parsed answer='17' reward=0.0",
        "Current parsed answer='18' reward=1.0",
        "Current parsed answer='18' reward=1.0",
    ]


async def test_a_sample_without_its_truth_is_masked() -> None:
    with script(said("#### 18")) as model:
        async with playing(model, Gsm8kTool()) as rollout:
            trajectory = await rollout.run(rollout.request(user("?")))
    assert trajectory.masked
    assert "needs the sample's ground_truth" in trajectory.exit_reason


async def test_a_truth_of_zero_is_one() -> None:
    tool = Gsm8kTool()
    await tool.create("s", ground_truth=0)  # type: ignore[arg-type] - as data sets have it
    await tool.execute("s", {"answer": 0})
    assert await tool.calc_reward("s") == 1.0


async def test_both_of_verls_hosts_can_make_it() -> None:
    tool = Gsm8kTool(config={}, tool_schema=None)
    old, _ = await tool.create("s-1", ground_truth="18")
    new, _ = await tool.create(create_kwargs={"ground_truth": "18"})
    for instance in (old, new):
        _, reward, _ = await tool.execute(instance, {"answer": "18"}, agent_data=None)
        assert (reward, await tool.calc_reward(instance)) == (0.0, 1.0)
        await tool.release(instance)
        await tool.release(instance)
    assert old == "s-1"
