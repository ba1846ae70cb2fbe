"""The program in a completion, and the language that its fence names."""

import pytest

from jail.judge.completion import code_as_verl, code_of
from tests.worker.scripted_answers import Answer
from worker.reward import RewardUnknown, compute_score

CPP = "int main() {}\n"


@pytest.mark.parametrize(
    ("fence", "language"),
    [
        ("python", "python"), ("py", "python"), ("Python3", "python"), ("", "python"),
        ("c++", "cpp"), ("cpp", "cpp"), ("C++ ", "cpp"), ("c", "c"), ("golang", "go"), ("go", "go"),
        ("js", "nodejs"), ("javascript", "nodejs"), ("ts", "typescript"), ("rust", "rust"),
        ("C++14", "cpp"), ("cpp17", "cpp"), ("cpp title=main.cpp", "cpp"), ("rust,no_run", "rust"),
        ("{.python}", "python"), ("text", "python"), ("java", "java"), ("sh", "bash"),
    ],
)  # fmt: skip
def test_the_fence_names_the_language(fence: str, language: str) -> None:
    code, named = code_of(f"So:\n```{fence}\n{CPP}```\nDone.") or ("", "")

    assert (code.lstrip(), named) == (CPP, language)


PROGRAM = "def f():\n    return 1\n"
OTHERS = "```text\nan idea\n```\n```bash\npython a.py\n```\n"
INDENTED = "1. So:\n\n   ```python\n   def f():\n       return 1\n   ```\n2. Done."


@pytest.mark.parametrize(
    "completion",
    [
        f"{OTHERS}```py\n{PROGRAM}```",
        f"```python\nold\n```\n```py\n{PROGRAM}```\n{OTHERS}",
        f'```python title="a.py"\n{PROGRAM}```',
        f"Try it:\r\n```python\r\n{PROGRAM}```\r\n",
        INDENTED,
        f"```python\n{PROGRAM}```\nRun ```python -m doctest``` on it.",
        f"~~~python\n{PROGRAM}~~~",
        f"````markdown\n```python\nno\n```\n````\n```python\n{PROGRAM}```",
        f"The program: ```python\n{PROGRAM}```",
        f"I use ``` for it:\n```python\n{PROGRAM}",
        f"```python\n{PROGRAM.rstrip()}```",
        f"```text\nan idea\n```\n```\n{PROGRAM}```\n```\n1\n```",
    ],
)
@pytest.mark.parametrize("language", [None, "python"])
def test_the_program_is_the_last_block_whose_fence_names_its_language(
    completion: str, language: str | None
) -> None:
    code, named = code_of(completion, language) or ("", "")
    assert (code.rstrip(), named) == (PROGRAM.rstrip(), "python")


@pytest.mark.parametrize(
    "completion",
    [
        "- ```python\n  def f():\n      return 1\n  ```\n- Done.",
        "2. ```python\n   def f():\n       return 1\n   ```\n",
        "> ```python\n> def f():\n>     return 1\n> ```\n",
        "> > - ```python\n> >   def f():\n> >       return 1\n> >   ```\n",
        "- ```python\ndef f():\n    return 1\n```",
    ],
)
def test_a_program_in_a_list_or_a_quotation_is_read_without_its_marks(completion: str) -> None:
    code, _ = code_of(completion) or ("", "")
    assert code.rstrip() == PROGRAM.rstrip()


def test_only_what_stands_in_front_of_the_first_line_too_is_taken_from_the_others() -> None:
    assert code_of("> ```py\n>\n> 1\n>\n> 2\n> ```") == ("\n1\n\n2\n", "python")
    assert code_of("- ```py\nif 1:\n  2\n```") == ("if 1:\n  2\n", "python")
    assert code_of("  ```py\nif 1:\n  2\n```") == ("if 1:\n  2\n", "python")


def test_a_language_that_no_fence_names_is_that_of_the_first_block() -> None:
    assert code_of("```c\n1\n```\n```go\n2\n```", "rust") == ("1\n", "rust")
    assert code_of("```c\n1\n```\n```go\n2\n```") == ("2\n", "go")
    assert code_of("no block, but ```this```") is None
    assert code_of("```py\n1\n``` prints 1.\n") == ("1\n", "python")


def test_a_line_of_a_million_tildes_is_read_in_one_go() -> None:
    line = "~" * 10**6

    assert code_of(f"{line}`\n1\n") is None
    assert code_of(f"{line}py\n1\n{line}\n") == ("1\n", "python")


def test_the_last_python_block_comes_first_as_verl_has_it() -> None:
    completion = "```c++\nint x;\n```\n```python\n1\n```\n```python\n2\n```"

    assert code_as_verl(completion) == ("\n2\n", "python")
    assert code_as_verl(completion, "cpp") == ("int x;\n", "cpp")
    assert code_as_verl(completion, "go") == ("\n2\n", "go")


@pytest.mark.parametrize("language", [None, "cpp", "c++"])
def test_a_language_reaches_the_sandbox(fusion, language) -> None:
    fusion.default = Answer.ok("42")
    completion = f"```c++\n{CPP}```"

    value, _ = compute_score(
        fusion.url, None, 256, completion, {"inputs": ["1"], "outputs": ["42"]}, language=language
    )

    assert value == 1.0
    assert [body["language"] for body in fusion.bodies] == ["cpp"]


@pytest.mark.parametrize("on_server", [False, True])
def test_a_language_that_only_a_fence_names_buys_no_mask(fusion, on_server: bool) -> None:
    wrong = [{"loc": ["body", "language"], "msg": "no lean"}]
    fusion.default = Answer(status=422, body={"detail": wrong})
    asked = (fusion.url if on_server else "local", None, 256, "```lean\n1\n```")
    cases = {"inputs": ["1", "2"], "outputs": ["42", "43"]}

    value, metadata = compute_score(*asked, cases)

    assert (value, [case["status"] for case in metadata]) == (0.0, ["compile_error"] * 2)
    assert "lean" in metadata[0]["compile_stderr"]
    with pytest.raises(RewardUnknown, match="lean"):
        compute_score(*asked, cases, language="lean")
