"""Programs that are right, wrong, slow, that crash or print strangely; and what becomes of each.

18 problems in 21 variants, each with the verdicts of its three cases. `PRIME_CODE` names the
variants that verl's prime_code sees otherwise, and why; `FUSION_REWARD` those of its other reward.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

# What it computes from `data`, the words of its input; and three inputs.
PROBLEMS: dict[str, tuple[str, list[str]]] = {
    "sum": ("answer = sum(map(int, data))", ["1 2 3", "-5 5", "100000 1"]),
    "product": ("import math; answer = math.prod(map(int, data))", ["2 3", "7 11 13", "0 9"]),
    "largest": ("answer = max(map(int, data))", ["3 1 2", "-4 -9", "8"]),
    "count": ("answer = len(data)", ["a b c", "x", "1 2 3 4 5"]),
    "reversed": ("answer = ' '.join(data[::-1])", ["a b", "one two three", "z"]),
    "sorted": ("answer = ' '.join(sorted(data))", ["c a b", "y x", "q q p"]),
    "gcd": ("import math; answer = math.gcd(*map(int, data))", ["12 18", "35 49", "17 4"]),
    "fibonacci": (
        "a, b = 0, 1\nfor _ in range(int(data[0])): a, b = b, a + b\nanswer = a",
        ["10", "50", "90"],
    ),
    "factorial": ("import math; answer = math.factorial(int(data[0]))", ["5", "20", "30"]),
    "power": ("answer = pow(int(data[0]), int(data[1]))", ["2 64", "3 40", "10 18"]),
    "modulo": ("answer = int(data[0]) % int(data[1])", ["17 5", "100 7", "81 9"]),
    "binary": ("answer = bin(int(data[0]))[2:]", ["5", "255", "1024"]),
    "palindrome": ("answer = 'YES' if data[0] == data[0][::-1] else 'NO'", ["abba", "ab", "x"]),
    "vowels": ("answer = sum(c in 'aeiou' for c in data[0])", ["banana", "rhythm", "aeiou"]),
    "primes": (
        "n = int(data[0])\n"
        "answer = sum(all(p % q for q in range(2, int(p ** 0.5) + 1)) for p in range(2, n))",
        ["10", "100", "1000"],
    ),
    "digits": ("answer = sum(map(int, data[0]))", ["123", "99999", "10203"]),
    "lines": ("answer = '\\n'.join(data)", ["a b c", "1 2", "x y z w"]),
    "collatz": (
        "n, answer = int(data[0]), 0\nwhile n != 1: n, answer = n // 2 if n % 2 == 0 else 3 * n"
        " + 1, answer + 1",
        ["6", "27", "97"],
    ),
}  # fmt: skip

_READ = "import sys\ndata = sys.stdin.read().split()\n"
# {body} computes `answer`, {last} is the last case's words.
VARIANTS: dict[str, tuple[str, str]] = {
    "right": ("{body}\nprint(answer)", "PPP"),
    "without a final newline": ("{body}\nprint(answer, end='')", "PPP"),
    "more newlines": ("{body}\nprint(answer, end='\\n\\n\\n')", "PPP"),
    "a blank at the end": ("{body}\nprint(answer, end=' \\n')", "PPP"),
    "a blank in front": ("{body}\nprint('', answer)", "WWW"),
    "CR LF": ("{body}\nprint(answer, end='\\r\\n')", "PPP"),
    "talk on stderr": ("{body}\nimport sys\nprint('hm', file=sys.stderr)\nprint(answer)", "PPP"),
    "wrong": ("print('nonsense')", "WWW"),
    "wrong on the last case": (
        "{body}\nprint(answer if data != {last} else 'nonsense')", "PPW"
    ),
    "one line too many": ("{body}\nprint(answer)\nprint('done')", "WWW"),
    "nothing": ("pass", "WWW"),
    "crash at once": ("1 / 0", "EEE"),
    "crash behind the answer": ("{body}\nprint(answer, flush=True)\n1 / 0", "EEE"),
    "exit 3 behind the answer": (
        "{body}\nprint(answer, flush=True)\nimport sys; sys.exit(3)", "EEE"
    ),
    "exit 0 behind the answer": (
        "{body}\nprint(answer, flush=True)\nimport sys; sys.exit(0)", "PPP"
    ),
    "ends without a word": ("import os; os._exit(0)", "WWW"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "EEE"),
    "no Python": ("this is not Python", "EEE"),
    "endless recursion": ("def f(): return f()\nf()", "EEE"),
    "reads descriptor 0": ("data = open(0).read().split()\n{body}\nprint(answer)", "PPP"),
    "by way of main": (
        "def main():\n    import sys\n    data = sys.argv\n\n{body}\n"
        "if __name__ == '__main__':\n    print(answer)",
        "PPP",
    ),
}  # fmt: skip

SLOW: dict[str, tuple[str, str]] = {
    "endless": ("while True: pass", "TTT"),
    "asleep": ("import time; time.sleep(1000)", "TTT"),
    "too much memory": ("x = bytearray(1 << 33)", "LLL"),
}

# Programs that pass there and not here, or the other way round, by variant, and why. Its reward by
# Sandbox Fusion's HTTP says the same as we do by the rule `ends`, which `compute_score` keeps.
PRIME_CODE: dict[str, str] = {
    "a blank in front": "it strips every line",
    "exit 3 behind the answer": "it catches `SystemExit`, whatever its code",
    "reads descriptor 0": "the program's stdin is an object in Python, and no descriptor",
}

# Those that verl's reward by Sandbox Fusion's HTTP calls wrong, for a blank or CR at a line's end.
FUSION_REWARD: dict[str, str] = {"a blank at the end": "WWW", "CR LF": "WWW"}


@dataclass(frozen=True)
class Sample:
    """One program, its cases, and our verdicts."""

    problem: str
    variant: str
    code: str
    inputs: list[str]
    outputs: list[str]
    expected: str


def corpus(*, slow: bool = False) -> list[Sample]:
    """All of them, in an order of its own; the slow ones for one problem alone."""
    found = [_sample(*names, VARIANTS) for names in product(PROBLEMS, VARIANTS)]
    return found + [_sample("sum", name, SLOW) for name in SLOW] if slow else found


def _sample(problem: str, variant: str, variants: dict[str, tuple[str, str]]) -> Sample:
    body, inputs = PROBLEMS[problem]
    outputs = []
    for text in inputs:
        names: dict[str, Any] = {"data": text.split()}
        exec(body, names)
        outputs.append(f"{names['answer']}\n")
    template, expected = variants[variant]
    read = "" if "open(0)" in template else _READ
    code = read + template.replace("{body}", body).replace("{last}", repr(inputs[-1].split()))
    return Sample(problem, variant, code, inputs, outputs, expected)
