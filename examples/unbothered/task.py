"""The task *steps*: a prompt names operations, and the model writes one expression for each.

The expressions become the lines of a program. Case j asks for the value after the first j of them,
so a program's reward is the share of its beginning that is right.
"""

import itertools
import random

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

_ids = {word: id for id, word in enumerate(WORDS)}
Prompt = tuple[str, ...]


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


def cases(prompt: Prompt) -> dict[str, object]:
    """One for each beginning of the prompt, judged by value."""
    known = {name: eval(f"lambda x: {line}") for name, line in OPERATIONS.items()}
    inputs, outputs = [], []
    for count, x in enumerate(INPUTS[: len(prompt)], 1):
        value = x
        for name in prompt[:count]:
            value = known[name](value)
        inputs.append([x, count])
        outputs.append(value)
    return {"fn_name": "run", "inputs": inputs, "outputs": outputs}


def drawn(seed: int, step: int, count: int) -> list[Prompt]:
    """The prompts of one step: a function of seed and step, so that a step can be done again."""
    return random.Random(f"prompts {seed} {step}").sample(EVERY_PROMPT, count)
