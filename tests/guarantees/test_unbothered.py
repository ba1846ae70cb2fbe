"""The example of a training that does not notice: its gradient, and its claim."""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from examples.unbothered import fleet, model, notes, plain, report, task
from tests.architecture.source import ROOT
from tests.harness.remains import processes_named
from tests.harness.servers import until


def test_a_gradient_is_what_a_small_step_of_each_weight_does_to_the_loss() -> None:
    weights = model.fresh(3)
    prompt = task.encoded(("inc", "neg", "abs"))
    rows = [([*prompt, 15, 18, task.END], 4, 1.5), ([*prompt, 20, 16, 17, 14], 4, -0.5)]

    def loss() -> float:
        total, live = 0.0, 0
        for tokens, begin, advantage in rows:
            lps = model.forward(weights, np.array([tokens]))[0][0]
            for place in range(begin, len(tokens)):
                said = lps[place - 1]
                entropy = -(np.exp(said) * said).sum()
                total += -advantage * said[tokens[place]] - model.ENTROPY * entropy
                live += 1
        return total / live

    found = model.gradient(weights, rows)
    draw = np.random.default_rng(0)
    for name, array in weights.items():
        place = tuple(draw.integers(side) for side in array.shape)
        if name == "words":
            place = (15, place[1])  # a token of the rows
        kept = array[place]
        array[place] = kept + 1e-6
        above = loss()
        array[place] = kept - 1e-6
        below = loss()
        array[place] = kept
        assert found[name][place] == pytest.approx((above - below) / 2e-6, rel=1e-3, abs=1e-8), name


def test_an_answer_does_not_depend_on_what_else_is_sampled() -> None:
    weights = model.fresh(3)
    prompts = [task.encoded(prompt) for prompt in task.HELD_OUT[:8]]

    def draws() -> list:
        return [model.drawing(seed, prompt) for seed, prompt in enumerate(prompts)]

    together = model.answers(weights, prompts, draws())
    alone = [
        model.answers(weights, [prompt], [draw])[0]
        for prompt, draw in zip(prompts, draws(), strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize(
    ("answer", "worth"),
    [
        ("x * 2\n-x\nx - 4", 1.0),
        ("x * 2\n-x\nx + 1", 2 / 3),
        ("x * 2", 1 / 3),
        ("x * 2\ny\nx - 4", 1 / 3),
        ("x * 2\n-x\nx +", 0.0),
        ("", 0.0),
    ],
)
def test_a_program_is_worth_the_share_of_its_beginning_that_is_right(answer, worth) -> None:
    prompt = ("double", "neg", "sub4")
    ran = subprocess.run(
        [sys.executable, "-c", task.BATCH], input=task.batch([answer, answer]),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, second = json.loads(ran.stdout)
    assert task.reward(prompt, first) == task.reward(prompt, second) == pytest.approx(worth)
    assert task.deserved(prompt, task.read(answer)) == pytest.approx(worth)


def test_no_held_out_prompt_is_trained_on() -> None:
    trained = {prompt for step in range(300) for prompt in task.drawn(1, step)}
    assert not trained & set(task.HELD_OUT)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Two steps, with all killed once in the second; and what they come to if nothing runs but
    the model."""
    folder = tmp_path_factory.mktemp("runs") / "seed-1"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fleet, "WORKERS", 1)
        with fleet.Fleet(folder / "killed", 1, 2, most_seconds=100) as training:
            until(lambda: training.done() or training.trainer.over, "a step")
            for kind in ("worker", "gateway", "redis", "trainer"):
                training.kill(kind)
            until(lambda: training.trainer.over, "the last step")
            noted(folder / "killed", training)
    for rewards in ("deserved", "zeros", "masked"):
        with fleet.Plain(
            folder / rewards, 1, 2, rewards=rewards, dead=0.5, most_seconds=100
        ) as run:
            until(lambda: run.trainer.over, "the last step")
            noted(folder / rewards, run)
    return report.read(folder.parent)[1]


def noted(folder: Path, training: fleet.Training) -> None:
    about = {"seconds": 9.0, "kills": dict(training.kills), "sandboxes": training.sandboxes()}
    (folder / "ended.json").write_text(json.dumps(about))


def test_killed_and_undisturbed_have_the_same_weights(killed) -> None:
    assert killed["killed"].about["kills"] == {"worker": 1, "gateway": 1, "redis": 1, "trainer": 1}
    assert report.equal(killed["killed"], killed["deserved"])
    assert killed["killed"].count("false") == killed["killed"].count("masked") == 0


def test_the_control_has_false_zeros_and_other_weights(killed) -> None:
    assert killed["zeros"].count("false_zeros") > 0
    assert not report.equal(killed["zeros"], killed["deserved"])


def test_what_is_masked_is_never_a_zero(killed) -> None:
    assert killed["masked"].count("masked") > 0
    assert killed["masked"].count("false") == 0


def test_all_seconds_beyond_those_of_an_undisturbed_run_are_accounted_for(killed) -> None:
    spent = report.split(killed["deserved"], killed["killed"])
    beyond = killed["killed"].seconds - killed["deserved"].seconds
    assert sum(spent.values()) == pytest.approx(beyond)
    assert spent["restart"] > 0


def test_the_picture_is_an_svg_with_a_line_for_each_way(killed) -> None:
    runs = dict.fromkeys(report.SHOWN, killed["killed"])
    found = ElementTree.fromstring(report.drawn({1: runs, 2: runs}))
    assert found.tag == "{http://www.w3.org/2000/svg}svg"
    drawn = {path.get("class") for path in found.iter("{http://www.w3.org/2000/svg}path")}
    assert drawn >= report.SHOWN.keys()


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_step_is_noted_once_though_a_trainer_dies_beside_its_checkpoint(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As a signal that nobody can catch."""

    def dies_at(file: Path, *checkpoint: object) -> None:
        if when == "after":
            saved(file, *checkpoint)
        raise Killed

    saved, weights = model.saved, model.fresh(1)
    saved(tmp_path / "checkpoint.npz", weights, model.Adam(weights), {"version": 0})
    run = {"seed": 1, "steps": 2, "rewards": "deserved", "dead": 0.0}
    (tmp_path / "run.json").write_text(json.dumps(run))
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(model, "saved", dies_at)
        plain.train(tmp_path)
    plain.train(tmp_path)
    assert [step["version"] for step in report.Ended(tmp_path).steps] == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_was_interrupted_leaves_no_process_and_is_run_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "examples.unbothered", "--folder", tmp_path, "--runs", "bare"]
    trained = tmp_path / "seed-1/bare"
    started = partial(subprocess.Popen, cwd=ROOT, stdout=subprocess.PIPE)
    heard = partial(signal.signal, number, signal.SIG_DFL)  # also if these tests are run by nohup
    with started([*command, "--steps", "9999"], preexec_fn=heard) as run:
        until(lambda: bool(notes.read(trained, "steps")), "a step")
        run.send_signal(number)
    assert (run.returncode, processes_named(str(trained))) == (128 + number, [])
    again = subprocess.run([*command, "--steps", "1"], cwd=ROOT, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert [step["version"] for step in notes.read(trained, "steps")] == [1]


def test_no_process_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.unbothered", "--folder", tmp_path]
    trained = tmp_path / "seed-1/bare"
    with subprocess.Popen(
        [*command, "--runs", "bare", "--steps", "9999"], cwd=ROOT, stdout=subprocess.DEVNULL
    ) as run:
        until(lambda: bool(notes.read(trained, "steps")), "a step")
        run.kill()
    until(lambda: not processes_named(str(trained)), "its trainer ends")


def test_a_run_takes_no_setting_of_another_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_GATEWAY_HOST", "192.0.2.1")
    monkeypatch.setenv("HOME_OF_MINE", "kept")
    given = fleet._environment()
    assert given["HOME_OF_MINE"] == "kept"
    assert not [name for name in given if name.startswith("PENSTOCK_")]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--runs", "bare,unheard"], "there is no run 'unheard'"),
        (["--runs", "bare", "--steps", "0"], "--steps: must be 1 or more, not 0"),
        (["--runs", "bare", "--seeds", "0"], "--seeds: must be 1 or more, not 0"),
        (["--picture", "/nowhere/curves.svg"], "--picture: there is no folder /nowhere"),
        (["--runs", "bare", "--steps", "2"], "seed-1/bare ended after 1 steps, not 2"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_runs(
    options: list[str], said: str, tmp_path: Path
) -> None:
    trained = tmp_path / "seed-1/bare"
    trained.mkdir(parents=True)
    (trained / "run.json").write_text('{"steps": 1}')
    (trained / "ended.json").write_text("{}")
    command = [sys.executable, "-m", "examples.unbothered", "--folder", str(tmp_path), *options]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 2
    assert said in refused.stderr
    assert (trained / "ended.json").exists()


def test_differences_are_told_of_any_number_of_seeds() -> None:
    said = [report._interval([0.1, 0.3] * half) for half in (5, 6)]
    assert [line.partition(" (")[0] for line in said] == ["+0.200 ± 0.075", "+0.200 ± 0.067"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_it_learns_and_has_the_same_weights_though_everything_is_killed(tmp_path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.unbothered", "--folder", str(tmp_path / "run")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    runs = report.read(tmp_path / "run")[1]
    assert runs["killed"].about["kills"].keys() == {"worker", "gateway", "redis", "trainer"}
    assert report.equal(runs["undisturbed"], runs["killed"])
    assert runs["undisturbed"].last("held") > 0.8 > runs["shuffled"].last("held")


def test_make_train_asks_for_no_more_than_it_was_told() -> None:
    """A variable of the Makefile that is named like one of its options would be passed on."""

    def told(*words: str) -> list[str]:
        command = ["make", "--dry-run", "train", *words]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return said.replace("\\\n", " ").partition("examples.unbothered")[2].split("\n")[0].split()

    assert told() == []
    assert told("SEEDS=2", "STEPS=20", "ASYNC=1") == [
        "--seeds", "2", "--asynchronous", "--steps", "20",
    ]  # fmt: skip
