"""The example of a training that does not notice: its gradient, and its claim. It needs numpy."""

import subprocess
import sys

import pytest

from tests.architecture.source import ROOT

np = pytest.importorskip("numpy", reason="the example computes with numpy: pip install numpy")

from examples.unbothered import model, task  # noqa: E402 - numpy may be absent


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


def test_a_program_is_worth_the_share_of_its_beginning_that_is_right() -> None:
    prompt = ("double", "neg", "sub4")
    found = task.cases(prompt)
    assert found == {
        "fn_name": "run",
        "inputs": [[3, 1], [-5, 2], [12, 3]],
        "outputs": [6, 10, -28],
    }
    defined: dict[str, object] = {}
    exec(task.program("x * 2\n-x\nx + 1"), defined)
    run = defined["run"]
    assert callable(run)
    assert [run(3, 1), run(-5, 2), run(12, 3)] == [6, 10, -23]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_it_has_the_same_weights_though_everything_is_killed(tmp_path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.unbothered", "--folder", str(tmp_path / "run")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "killed with -9: " in ran.stdout
    assert "equal, bit for bit" in ran.stdout
