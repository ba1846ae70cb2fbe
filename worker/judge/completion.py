"""The program in what a model wrote, and its language."""

import re

# What is written behind the three backquotes, in lower case.
_FENCES = {
    "python": "python", "py": "python", "python3": "python", "py3": "python",
    "c": "c", "cpp": "cpp", "c++": "cpp", "cxx": "cpp", "cc": "cpp", "c++17": "cpp", "c++20": "cpp",
    "java": "java", "go": "go", "golang": "go", "rust": "rust", "rs": "rust",
    "javascript": "nodejs", "js": "nodejs", "node": "nodejs", "nodejs": "nodejs",
    "typescript": "typescript", "ts": "typescript", "bash": "bash", "sh": "bash", "shell": "bash",
    "csharp": "csharp", "c#": "csharp", "cs": "csharp", "php": "php", "ruby": "ruby", "rb": "ruby",
    "kotlin": "kotlin_script", "scala": "scala", "swift": "swift", "perl": "perl", "lua": "lua",
    "julia": "julia", "jl": "julia", "r": "R", "sql": "sql", "racket": "racket", "lean": "lean",
}  # fmt: skip
_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)


def language_named(name: str) -> str | None:
    """The language that a fence names, or a data set: `c++`, `py`, `golang`."""
    words = name.split()
    return _FENCES.get(words[0].strip("{}.,").lower()) if words else None


def code_of(completion: str, language: str | None = None) -> tuple[str, str] | None:
    """A program and its language; None if there is no block.

    As verl has it: the last ```python block, else the first block of any kind, which is Python
    where its fence does not say otherwise. With a `language`: the last block of that, else the
    same, taken for that language.
    """
    if language is not None and language != "python":
        own = [code for fence, code in _BLOCK.findall(completion)
               if language_named(fence) == language]  # fmt: skip
        if own:
            return own[-1], language
    if "```python" in completion:
        code = completion.rpartition("```python")[2].partition("```")[0]
        return code, language or "python"
    pieces = completion.split("```")
    if len(pieces) < 2:
        return None
    fence, newline, code = pieces[1].partition("\n")
    named = language_named(fence)
    if newline and (named or fence.strip().isalpha()):
        return code, language or named or "python"
    return pieces[1], language or "python"
