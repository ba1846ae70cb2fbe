"""The program in what a model wrote."""


def code_of(completion: str) -> str | None:
    """The last ```python block, else the first block of any kind; None where there is none."""
    if "```python" in completion:
        return completion.rpartition("```python")[2].partition("```")[0]
    pieces = completion.split("```")
    if len(pieces) < 2:
        return None
    language, newline, code = pieces[1].partition("\n")
    return code if newline and language.strip().isalpha() else pieces[1]
