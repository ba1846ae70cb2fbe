"""The task *steps*: a prompt names operations, and the model writes one expression for each.

The expressions become the lines of a program. It is asked for the value after its first line, its
first two, and all of them, so its reward is the share of its beginning that is right.
"""

import itertools
import json
import random
from typing import Any

OPERATIONS = {
    "double": "x * 2",
    "inc": "x + 1",
    "dec": "x - 1",
    "square": "x * x",
    "neg": "-x",
    "half": "x // 2",
    "mod7": "x % 7",
    "triple": "x * 3",
    "add10": "x + 10",
    "abs": "abs(x)",
    "xor5": "x ^ 5",
    "sub4": "x - 4",
}
BROKEN = ("x / 0", "x +", "[x]", "y")  # an exception, no Python, a wrong type, an unknown name
END, BEGIN = 0, 1
WORDS = ("<end>", "<begin>", *OPERATIONS, *OPERATIONS.values(), *BROKEN)
FIRST = 2 + len(OPERATIONS)  # what follows may be sampled, and END
LENGTH = 3  # operations of a prompt
LONGEST = LENGTH + 1  # tokens of an answer
INPUTS = (3, -5, 12)
EVERY_PROMPT = list(itertools.product(OPERATIONS, repeat=LENGTH))
HELD_OUT = random.Random("held out").sample(EVERY_PROMPT, 64)  # never trained on
TRAINED = sorted(set(EVERY_PROMPT) - set(HELD_OUT))

_ids = {word: id for id, word in enumerate(WORDS)}
_values = {line: eval(f"lambda x: {line}") for line in OPERATIONS.values()}
_known = {name: _values[line] for name, line in OPERATIONS.items()}
Prompt = tuple[str, ...]
PROMPTS, SAMPLES = 8, 8  # of a step


def encoded(prompt: Prompt) -> list[int]:
    return [*(_ids[word] for word in prompt), BEGIN]


def written(ids: list[int]) -> str:
    """One expression a line."""
    return "\n".join(WORDS[id] for id in ids)


def read(text: str) -> list[int]:
    return [_ids[line] for line in text.split("\n") if line]


def program(answer: str) -> str:
    """What is judged, and calls nothing but itself."""
    lines = "".join(f"    lambda x: {line},\n" for line in answer.split("\n") if line)
    return f"STEPS = [\n{lines}]\n\n\ndef run(x, count):\n" + (
        "    for step in STEPS[:count]:\n        x = step(x)\n    return x\n"
    )


# One job runs a batch of programs, and prints what each of them returns. Their tokens are the
# task's, so they may share a process; programs of a real model get a job each (`worker.hosts`).
BATCH = """\
import json, sys


def value(program, x, count):
    try:
        exec(program, names := {})
        return names["run"](x, count)
    except Exception as error:
        return repr(error)


programs, inputs = json.load(sys.stdin)
found = [[value(program, x, n) for n, x in enumerate(inputs, 1)] for program in programs]
print(json.dumps(found))
"""


def batch(answers: list[str]) -> str:
    """What `BATCH` reads."""
    return json.dumps([[program(answer) for answer in answers], INPUTS])


def reward(prompt: Prompt, values: list[Any]) -> float:
    """The share of the prompt's beginnings after which the program has the right value."""
    right = 0
    for count, x in enumerate(INPUTS, 1):
        value = x
        for name in prompt[:count]:
            value = _known[name](value)
        right += values[count - 1] == value
    return right / len(INPUTS)


def deserved(prompt: Prompt, ids: list[int]) -> float:
    """The reward of an answer, found here and not by any sandbox."""
    lines = [WORDS[id] for id in ids if id != END]
    if "x +" in lines:  # not Python, so none of it runs
        return 0.0
    values: list[Any] = []
    for count, x in enumerate(INPUTS, 1):
        value: Any = x
        for line in lines[:count]:
            value = _values[line](value) if line in _values else None
            if value is None:
                break
        values.append(value)
    return reward(prompt, values)


def drawn(seed: int, step: int) -> list[Prompt]:
    """The prompts of one step: a function of seed and step, so that a step can be done again."""
    return random.Random(f"prompts {seed} {step}").sample(TRAINED, PROMPTS)


def sampling_seed(seed: int, step: int, number: int, sample: int) -> int:
    """The seed of one answer."""
    return ((seed * 1_000_000 + step) * PROMPTS + number) * SAMPLES + sample
