"""The program in a completion, and the language that its fence names."""

import pytest

from tests.worker.scripted_answers import Answer
from worker.judge.completion import code_of
from worker.reward import compute_score

CPP = "int main() {}\n"


@pytest.mark.parametrize(
    ("fence", "language"),
    [
        ("python", "python"), ("py", "python"), ("Python3", "python"), ("", "python"),
        ("c++", "cpp"), ("cpp", "cpp"), ("C++ ", "cpp"), ("c", "c"), ("golang", "go"), ("go", "go"),
        ("js", "nodejs"), ("javascript", "nodejs"), ("ts", "typescript"), ("rust", "rust"),
        ("cpp title=main.cpp", "cpp"), ("text", "python"), ("java", "java"), ("sh", "bash"),
    ],
)  # fmt: skip
def test_the_fence_names_the_language(fence: str, language: str) -> None:
    code, named = code_of(f"So:\n```{fence}\n{CPP}```\nDone.") or ("", "")

    assert (code.lstrip(), named) == (CPP, language)


def test_the_last_python_block_comes_first_as_verl_has_it() -> None:
    completion = "```c++\nint x;\n```\n```python\n1\n```\n```python\n2\n```"

    assert code_of(completion) == ("\n2\n", "python")
    assert code_of(completion, "cpp") == ("int x;\n", "cpp")
    assert code_of(completion, "go") == ("\n2\n", "go")


@pytest.mark.parametrize("language", [None, "cpp", "c++"])
def test_a_language_reaches_the_sandbox(fusion, language) -> None:
    fusion.default = Answer.ok("42")
    completion = f"```c++\n{CPP}```"

    value, _ = compute_score(
        fusion.url, None, 256, completion, {"inputs": ["1"], "outputs": ["42"]}, language=language
    )

    assert value == 1.0
    assert [body["language"] for body in fusion.bodies] == ["cpp"]
