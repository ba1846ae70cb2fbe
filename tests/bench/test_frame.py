"""The frame of the benchmarks: turns, numbers, and what is printed where."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import bench
from bench.__main__ import main, suites
from bench.peers import environment
from bench.report import plot
from bench.suite import Ratio, Suite, Target, judge, run, without

TINY = """
from bench.suite import Ratio, Suite, Target

def measure(quick):
    return Suite(
        contenders={"ours": lambda: {"per s": 20.0}, "peer": lambda: {"per s": 10.0}},
        rounds=2 if quick else 9,
        ratios=[Ratio("per s", "ours", "peer")],
        targets=[Target("ours per s vs peer", at_least=3)],
    )
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A suite called tiny, found as every other."""
    (tmp_path / "tiny.py").write_text(TINY)
    monkeypatch.setattr(bench, "__path__", [*bench.__path__, str(tmp_path)])
    yield
    import sys

    sys.modules.pop("bench.tiny", None)


def recording(log: list[str], name: str, values: list[float]):
    def once():
        log.append(name)
        return {"ms": values.pop(0)}

    return once


def test_runs_take_turns_and_become_median_least_and_most() -> None:
    log: list[str] = []
    cleaned: list[bool] = []
    suite = Suite(
        contenders={
            "ours": recording(log, "ours", [3, 1, 2]),
            "peer": recording(log, "peer", [4, 4, 10]),
        },
        rounds=3,
        ratios=[Ratio("ms", "ours", "peer")],
        clean_up=lambda: cleaned.append(True),
    )
    results, ratios = run(suite, lambda line: None)
    assert log == ["ours", "peer"] * 3
    assert results["ours"]["ms"] == {"median": 2, "min": 1, "max": 3}
    assert ratios == {"ours ms vs peer": 0.5}
    assert cleaned == [True]


def test_a_target_may_be_a_ratio_or_a_metric_from_either_side() -> None:
    results = {"ours": {"ms": {"median": 2.0, "min": 1.0, "max": 3.0}}}
    targets = [Target("ours ms", at_most=2), Target("ours ms vs peer", at_least=1)]
    suite = Suite(contenders={}, rounds=1, targets=targets)
    assert judge(suite, results, {"ours ms vs peer": 0.5}) == [
        {"what": "ours ms", "goal": "<= 2", "measured": 2.0, "met": True},
        {"what": "ours ms vs peer", "goal": ">= 1", "measured": 0.5, "met": False},
    ]


def test_a_ratio_may_be_to_another_metric_of_the_peer() -> None:
    suite = Suite(
        contenders={"ours": lambda: {"p99 ms": 3.0}, "peer": lambda: {"p50 ms": 6.0}},
        rounds=1,
        ratios=[Ratio("p99 ms", "ours", "peer", "p50 ms")],
    )
    _, ratios = run(suite, lambda line: None)
    assert ratios == {"ours p99 ms vs peer p50 ms": 0.5}


def test_with_json_one_object_stands_alone_on_stdout(tiny: None) -> None:
    result = CliRunner().invoke(main, ["tiny", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert set(report) == {"suite", "conditions", "results", "ratios", "targets"}
    assert report["suite"] == "tiny"
    assert report["conditions"]["rounds"] == 2
    assert report["ratios"] == {"ours per s vs peer": 2.0}
    assert report["targets"][0]["met"] is False
    assert "round 2 of 2: peer" in result.stderr


def test_without_json_it_is_told_for_people_and_drawn(tiny: None, tmp_path: Path) -> None:
    picture = tmp_path / "bars.svg"
    result = CliRunner().invoke(main, ["tiny", "--quick", "--plot", str(picture)])
    assert "ours per s vs peer: 2.00x" in result.stdout
    assert "missed ours per s vs peer: 2, goal >= 3" in result.stdout
    assert picture.read_text().startswith("<svg")


def test_suites_are_found_not_listed(tiny: None) -> None:
    assert "tiny" in suites()
    assert not {"suite", "peers", "report", "conditions", "__main__"} & set(suites())


def test_an_unknown_suite_is_refused_before_anything_runs(tiny: None) -> None:
    result = CliRunner().invoke(main, ["tiny", "absent"])
    assert result.exit_code == 2
    assert "no suite 'absent'; there are " in result.stderr
    assert "round" not in result.stderr


def test_a_peer_that_is_not_pinned_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'arq>=0\.28' is not pinned"):
        environment("arq", ["arq>=0.28"])


def test_names_are_escaped_in_the_picture() -> None:
    spread = {"median": 1.0, "min": 1.0, "max": 1.0}
    report = {"suite": "a<b", "results": {"x&y": {"ms": spread}}}
    assert "a&lt;b" in plot([report])
    assert "x&amp;y" in plot([report])


def test_a_contender_left_out_takes_its_ratios_and_targets_along() -> None:
    nothing = dict[str, float]
    suite = Suite(
        contenders={"ours": nothing, "peer": nothing, "other": nothing},
        rounds=1,
        ratios=[Ratio("ms", "ours", "peer"), Ratio("ms", "ours", "other")],
        targets=[
            Target("ours ms vs peer", at_most=1),
            Target("ours ms vs other", at_most=1),
            Target("peer ms", at_most=1),
            Target("ours ms", at_most=1),
        ],
    )
    left = without(suite, ["peer"])
    assert list(left.contenders) == ["ours", "other"]
    assert [ratio.name for ratio in left.ratios] == ["ours ms vs other"]
    assert [target.what for target in left.targets] == ["ours ms vs other", "ours ms"]


def test_targets_of_a_contender_left_out_are_said_to_be_not_judged(tiny: None) -> None:
    words = ["tiny", "--quick", "--without", "ours"]
    result = CliRunner().invoke(main, words)
    assert "not judged ours per s vs peer, goal >= 3" in result.stdout
    (target,) = json.loads(CliRunner().invoke(main, [*words, "--json"]).stdout)["targets"]
    assert (target["measured"], target["met"]) == (None, None)
